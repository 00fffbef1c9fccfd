"""What vLLM's engine logs of a worker that ended, in the engine's ring."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from logging.config import dictConfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ncclscope.tracing import session
from ncclscope_patches.vllm import complaints
from ncclscope_patches.vllm.complaints import VllmComplaints
from tests.support.rings import read

TEXT = "Worker proc %s died unexpectedly, shutting down executor."
WITH_STATUS = "Worker proc %s died unexpectedly (exit code: %s), shutting down executor."


def configure() -> None:
    """Configure vLLM's logger as vLLM does when it has read its arguments."""
    dictConfig(
        {"version": 1, "disable_existing_loggers": False, "loggers": {"vllm": {"handlers": []}}}
    )


@pytest.fixture
def engine(rings: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """Act as a fresh engine that is traced."""
    for name, value in (("NCCLSCOPE_DIR", str(rings)), ("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(complaints, "explain_to", lambda *_: True)
    session._reset()
    session.current()
    patch = VllmComplaints()
    patch.active = True
    module = ModuleType("vllm.logger")
    module._configure_vllm_root_logger = configure  # type: ignore[attr-defined]
    patch.install(module)
    module._configure_vllm_root_logger()
    yield logging.getLogger("vllm.engine")
    patch.revert()
    session._reset()


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (TEXT, ("VllmWorker-3",), ("VllmWorker-3", 4)),
        (WITH_STATUS, ("VllmWorker-0", -9), ("VllmWorker-0, exit status -9", 1)),
        (TEXT, ("SomethingElse",), None),
        ("A proc died unexpectedly.", (), None),
    ],
)
def test_the_worker_is_noted(
    engine: logging.Logger, text: str, arguments: tuple[Any, ...], expected: tuple[str, int] | None
) -> None:
    engine.error(text, *arguments)

    tracer = session.current()
    assert tracer is not None
    died = read(tracer.path).activities.get("worker_died")
    noted = died is not None and died.detail is not None
    assert ((died.detail, died.number) if died is not None and noted else None) == expected
