"""examples/watchdogs: each watchdog prints the verdict when it fires."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nodes import environment
from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("watchdog", ["sglang", "tensorrt_llm", "ray_train", "dlrover"])
def test_it_names_the_rank_that_sleeps(watchdog: str, rings: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "ncclscope", "run", "--no-explain", "--dir", str(rings), "--"),
            *(sys.executable, str(ROOT / "examples" / "watchdogs" / "run.py"), watchdog),
        ],
        env=environment(EXPLAIN_SECONDS="60"),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "Rank 1 (" in done.stdout
    assert "never joined call 6 on world of ranks 0-2" in " ".join(
        done.stdout.replace("│", " ").split()
    )
