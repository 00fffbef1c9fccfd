"""The line at which an exception is noted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.tracing import session
from ncclscope.tracing.exceptions import note_traced

VLLM = "/venv/lib/python3.11/site-packages/vllm/v1"


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ((f"{VLLM}/executor.py", f"{VLLM}/moe.py"), "moe.py:1 step1"),
        ((f"{VLLM}/executor.py", "torch/distributed/distributed_c10d.py"), "executor.py:1 step0"),
        (("/home/me/train.py", f"{VLLM}/moe.py"), "train.py:1 step0"),
        ((f"{VLLM}/executor.py", "/home/me/plugin.py", f"{VLLM}/moe.py"), "plugin.py:1 step1"),
    ],
)
def test_an_exception_is_noted_at_the_innermost_line_of_the_program_else_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], line: str
) -> None:
    monkeypatch.setenv("NCCLSCOPE_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    session._reset()
    assert session.current() is not None
    names: dict[str, Any] = {}
    for number, file in enumerate(files):
        call = f"step{number + 1}()" if number + 1 < len(files) else "1 / 0"
        exec(compile(f"def step{number}(): {call}", file, "exec"), names)
    try:
        names["step0"]()
    except ZeroDivisionError as error:
        trace = error.__traceback__
        assert trace is not None
        note_traced(ZeroDivisionError, trace.tb_next)  # without the frame of this test

    noted = open_run(tmp_path).ranks[0].activities["raised"]
    session._reset()
    assert noted.detail == f"ZeroDivisionError at {line}"
