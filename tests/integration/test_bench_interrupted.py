"""The benchmark leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_written_is_removed(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "benchmarks.runners", "--quick", "--only", "diagnose"]
    with subprocess.Popen(
        [*command, "--dir", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as bench:
        assert bench.stderr is not None
        for line in bench.stderr:
            if line.startswith("measuring"):
                break
        assert any(tmp_path.iterdir())
        bench.send_signal(number)
        rest = bench.stderr.read()

    assert bench.returncode == 128 + number
    assert "Traceback" not in rest
    assert not list(tmp_path.iterdir())
