"""Seconds of what `python -m tests.campaign soak` does for hours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def test_a_short_soak_finds_no_problem_and_samples_every_process(tmp_path: Path) -> None:
    document = tmp_path / "soak.json"
    options = ["--minutes", "0.05", "--json", str(document)]

    done = subprocess.run(
        [sys.executable, "-m", "tests.campaign", "soak", *options],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(document.read_text())
    assert found["problems"] == []
    vllm = {"engine", "worker 0", "worker 1"}
    expected = {"seconds", "watch", *vllm, *(f"untraced {name}" for name in vllm)}
    assert all(set(sample) == expected for sample in found["samples"])
    assert found["samples"][0]["worker 0"]["heap"] > found["samples"][0]["watch"]["heap"]
