"""examples/watchdog_restart: a hung vLLM server that comes back by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "watchdog_restart"


@pytest.mark.slow
def test_it_hangs_and_serves_again(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "run.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "watch: diverged: " in done.stdout
    assert "supervisor: the server has ended" in done.stdout
    assert "it serves again" in done.stdout
    (bundle,) = (tmp_path / "bundles").iterdir()
    verdict = diagnose(open_run(bundle))
    assert verdict.cause is not None
    assert verdict.cause.kind == "missing_call"
    assert (verdict.cause.diverging_ranks, verdict.cause.confidence) == ((1,), "likely")
