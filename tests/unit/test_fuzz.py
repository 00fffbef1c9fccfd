"""A few hundred of the inputs that ``make fuzz`` makes."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("format", ["rings", "jsonl", "dumps"])
def test_damaged_inputs_are_answered_within_their_budget(format: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "90", "--only", format]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "90 inputs in " in done.stdout
