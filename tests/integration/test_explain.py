"""`ncclscope.explain()`: a verdict for whoever notices a hang inside of the job."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ncclscope
from ncclscope import explanation
from ncclscope.explanation import explain_to
from ncclscope_patches.vllm.complaints import VllmComplaints
from tests.support.programs import run_program


@pytest.fixture
def skipped(rings: Path) -> Path:
    """Rings of three ranks of this process; rank 1 has left out a call."""
    for rank in range(3):
        tracer = ncclscope.Tracer(rings, rank=rank, world_size=3, heartbeat=False)
        world = tracer.communicator("world", "world", [0, 1, 2], "gloo")
        for step in range(6):
            if (rank, step) != (1, 4):
                tracer.record(world, "all_reduce", shape=(step + 1,), dtype="float32")
    return rings


def test_text_and_document_of_a_hang(skipped: Path) -> None:
    found = ncclscope.explain(skipped, seconds=60)
    assert found.document["verdict"]["diverging_ranks"] == [1]
    assert "Rank 1 (" in str(found) == found.text
    assert found.text.splitlines()[-1].endswith(f"ncclscope diagnose {skipped}")


def test_a_healthy_job_is_one_line(rings: Path) -> None:
    tracer = ncclscope.Tracer(rings, rank=0, world_size=1)
    tracer.record(tracer.communicator("k", "world", [0]), "barrier")
    tracer.close()
    found = ncclscope.explain(rings, seconds=60)
    assert found.document["status"] == "ok"
    assert found.text.splitlines()[0].startswith(
        "ncclscope: not explained by the recorded calls: ok: "
    )


@pytest.mark.parametrize(
    ("directory", "why"),
    [(None, "NCCLSCOPE_DIR is not set"), ("/nowhere", "/nowhere"), (7, "TypeError")],
)
def test_it_never_raises(monkeypatch: pytest.MonkeyPatch, directory: str | None, why: str) -> None:
    monkeypatch.delenv("NCCLSCOPE_DIR", raising=False)
    monkeypatch.delenv("NCCL_SCOPE_DIR", raising=False)
    found = ncclscope.explain(directory, seconds=60)
    assert found.document == {}
    assert found.text.startswith("ncclscope: no verdict: ")
    assert why in found.text


def test_it_returns_in_time(skipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "_command", lambda *_: ["sleep", "60"])
    begun = time.monotonic()
    assert "not within 0.2 s" in ncclscope.explain(skipped, seconds=0.2).text
    assert time.monotonic() - begun < 30


def test_it_is_light() -> None:
    done = run_program("import ncclscope, sys; ncclscope.explain(); print('numpy' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def printed(descriptor: int) -> str:
    """Return the bytes written to a pipe until all writers have closed it."""
    with open(descriptor, encoding="utf-8") as pipe:
        return pipe.read()


def test_one_process_of_a_job_prints_it(skipped: Path) -> None:
    reading, writing = os.pipe()
    assert [explain_to(writing, skipped) for _ in range(3)] == [True, False, False]
    os.close(writing)
    assert "Rank 1 (" in printed(reading)
    assert ncclscope.diagnose(ncclscope.open_run(skipped)).cause is not None
    os.utime(skipped / ".explained", (0, 0))
    assert explain_to(2, skipped)


@pytest.fixture
def complaints() -> Iterator[logging.Logger]:
    patch = VllmComplaints()
    patch.active = True
    patch.install(None)
    yield logging.getLogger("vllm.engine")
    patch.revert()


@pytest.mark.parametrize("complaint", ["message", "exception", "neither"])
def test_what_vllm_complains_of_is_explained(
    skipped: Path,
    complaints: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    complaint: str,
) -> None:
    class EngineDeadError(Exception):
        pass

    reading, writing = os.pipe()
    monkeypatch.setenv("NCCLSCOPE_DIR", str(skipped))
    complaints.setLevel(logging.INFO)
    with open(writing, "w") as stderr:
        monkeypatch.setattr(sys, "__stderr__", stderr)
        if complaint == "message":
            complaints.info("No available shared memory broadcast block found in %d seconds.", 60)
        elif complaint == "exception":
            try:
                raise EngineDeadError
            except EngineDeadError:
                complaints.exception("AsyncLLM output_handler failed.")
        else:
            complaints.info("Avg generation throughput: 3.2 tokens/s")
    assert ("Rank 1 (" in printed(reading)) == (complaint != "neither")
