"""`ncclscope doctor`: what is there is said, and what would enable the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclscope.live.checks import Check, is_useful
from tests.cluster import Cluster
from tests.programs import ROOT


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / part) for part in ("", "analyzers", "patches"))
    return subprocess.run(
        [sys.executable, "-m", "ncclscope", "doctor", *arguments],
        env={**os.environ, "PYTHONPATH": path, "NCCL_RAS_ADDR": "127.0.0.1:1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def checks(**environment: str) -> dict[str, dict[str, Any]]:
    done = doctor("--json", **environment)
    assert done.returncode == 0, done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_it_looks_at_everything() -> None:
    found = checks()

    assert set(found) >= {
        *("switch", "rings", "recorded", "vllm"),
        *("stacks", "permission", "native", "gpu", "ras", "flight_recorder"),
        *("ncclscope", "diagnoses", "probes", "vLLM plugin", "torch"),
    }
    assert found["stacks"]["status"] == "ok"
    for check in found.values():
        assert check["status"] in ("ok", "off", "bad")
        assert check["enable"] or check["status"] == "ok" or check["name"] in ("recorded", "torch")


def test_rings_that_are_there_are_found(tmp_path: Path) -> None:
    Cluster(tmp_path / "rings", 2)
    found = checks(NCCLSCOPE_DIR=str(tmp_path))

    assert found["switch"]["status"] == "ok"
    assert found["recorded"]["state"].startswith("2 rings")
    assert str(tmp_path / "rings") in found["recorded"]["enable"]


def test_tracing_that_is_switched_off_is_said_to_be() -> None:
    assert "NCCLSCOPE=0" in checks(NCCLSCOPE="0")["switch"]["state"]


def test_the_screen_fits_and_says_what_to_do() -> None:
    done = doctor(COLUMNS="80")

    assert done.returncode == 0
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "LOOKING AT LIVING PROCESSES" in done.stdout
    assert "-> " in done.stdout


def test_it_imports_nothing_heavy() -> None:
    program = (
        "import sys, ncclscope.__main__ as m; m.main(['doctor', '--json']);"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'pandas', 'vllm')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("rings", "stacks", "useful"),
    [("ok", "ok", True), ("bad", "ok", True), ("ok", "bad", True), ("bad", "bad", False)],
)
def test_the_exit_status_says_whether_anything_would_work(
    rings: str, stacks: str, useful: bool
) -> None:
    found = [Check("", "rings", rings, ""), Check("", "stacks", stacks, "")]
    assert is_useful(found) == useful
