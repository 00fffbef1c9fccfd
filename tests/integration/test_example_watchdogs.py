"""examples/watchdogs: each watchdog prints the verdict when it fires."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nodes import environment
from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("watchdog", ["sglang", "tensorrt_llm", "ray_train", "dlrover"])
def test_it_names_the_rank_that_sleeps(watchdog: str, rings: Path) -> None:
    command = [
        *(sys.executable, "-m", "ncclscope", "run", "--no-explain", "--dir", str(rings), "--"),
        *(sys.executable, str(ROOT / "examples" / "watchdogs" / "run.py"), watchdog),
    ]
    with subprocess.Popen(
        command,
        env=environment(EXPLAIN_SECONDS="60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as example:
        try:
            said, errors = example.communicate(timeout=200)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(example.pid, signal.SIGKILL)
    assert example.returncode == 0, errors
    assert "Rank 1 (" in said
    assert "never joined call 6 on world of ranks 0-2" in " ".join(said.replace("│", " ").split())
