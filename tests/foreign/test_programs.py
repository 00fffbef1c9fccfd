"""Healthy programs on what users train with: no alarm while they run, none when they have ended.

Their ranks are seldom in step: each sleeps now and then, and one for three seconds.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.foreign.torchrun import PROGRAMS, run_watched

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(600)]

NEEDS = {"accelerate_train": "accelerate", "deepspeed_zero": "deepspeed"}
HEALTHY = sorted(
    file.stem
    for file in PROGRAMS.glob("*.py")
    if file.stem not in ("__init__", "pace", "elastic_restart")
)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_raises_no_alarm(rings: Path, tmp_path: Path, name: str) -> None:
    if (package := NEEDS.get(name)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")

    seen = run_watched(rings, tmp_path, name)

    assert seen.status == 0, seen.output
    assert seen.alarms == []
    assert seen.verdict["status"] in ("ok", "unknown"), seen.verdict
    # What no probe records has to be reported; without that, healthy is ok.
    assert seen.verdict["status"] == "ok" or not seen.verdict["coverage"]["complete"]
    assert seen.verdict["ranks"] == {"expected": 4, "read": 4, "missing": []}
    assert any(document["status"] in ("ok", "unknown") for document in seen.watched)
