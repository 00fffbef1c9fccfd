"""Jobs of DeepSpeed and Megatron-core on gloo: names, steps and verdicts."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.engine.verdict import diagnose
from tests.integration.c10d_ranks import ROOT, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAMS = ROOT / "tests" / "integration" / "engine_programs"
PRELOAD = {
    "deepspeed_ranks": ("deepspeed", "deepspeed.ops"),
    "megatron_ranks": ("megatron.core.pipeline_parallel", "megatron.core.transformer"),
}
RANKS = 4
SECONDS = 200


def is_alarm(document: dict[str, Any]) -> bool:
    return document.get("status") in ("diverged", "hung")


def run_job(
    rings: Path,
    program: str,
    *,
    until: Callable[[dict[str, Any]], bool] = is_alarm,
    **settings: str,
) -> dict[str, Any]:
    """Return the verdict on a job that has ended, or as soon as it is as wanted."""
    package = PRELOAD[program][0]
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"needs {package}")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    common = {
        "WORLD_SIZE": str(RANKS),
        "MEETING_POINT": str(rings / "store"),
        "NCCLSCOPE_DIR": str(rings),
        "PYTHONWARNINGS": "ignore",
        **settings,
    }
    ranks = [
        start(
            str(PROGRAMS / f"{program}.py"),
            "train",
            {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            preload=PRELOAD[program],
        )
        for rank in range(RANKS)
    ]
    try:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            ended = all(rank.poll() is not None for rank in ranks)
            document = ask(rings)
            if ended or until(document):
                return document
            time.sleep(0.5)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    raise AssertionError(f"no alarm and no end within {SECONDS} s")


def ask(rings: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "ncclscope", "diagnose", "--json", str(rings)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT).stdout
    return dict(json.loads(output)) if output else {}


def evidence(document: dict[str, Any]) -> str:
    return " ".join(document["verdict"]["evidence"])


def has_cycle(document: dict[str, Any]) -> bool:
    return is_alarm(document) and "waits for rank" in evidence(document)


def test_healthy_megatron_is_ok_with_names_and_steps(rings: Path) -> None:
    assert run_job(rings, "megatron_ranks", TP="2", PP="2")["status"] == "ok"

    run = open_run(rings)
    assert {"tp", "pp", "mp", "embd"} <= {comm.label for comm in run.communicators.values()}
    assert [rank.labels for rank in run.ranks] == [
        {"tp": str(rank % 2), "pp": str(rank // 2)} for rank in range(RANKS)
    ]
    for rank in run.ranks:
        assert [(step.number, step.tokens) for step in rank.steps] == [
            (n, 128) for n in range(1, 7)
        ]


def test_skipped_all_reduce_among_equal_ones_is_named_with_its_step(rings: Path) -> None:
    verdict = run_job(rings, "megatron_ranks", TP="2", PP="2", FAULT="skipped_reduce")["verdict"]

    assert (verdict["kind"], verdict["diverging_ranks"]) == ("missing_call", [1])
    assert verdict["comm"]["label"] == "tp"
    assert "in step 4" in verdict["summary"]


def test_wrong_order_of_a_stage_is_named_with_the_cycle(rings: Path) -> None:
    # The difference shows before all ranks of the cycle wait.
    document = run_job(
        rings, "megatron_ranks", until=has_cycle, TP="1", PP="4", FAULT="wrong_order"
    )

    verdict = document["verdict"]
    assert (verdict["kind"], verdict["diverging_ranks"]) == ("p2p_mismatch", [1])
    assert verdict["comm"]["label"] == "pp"
    assert "of step 4" in verdict["summary"]
    assert "rank 1 waits for rank 2, in recv" in evidence(document)
    assert "rank 2 waits for rank 1, in recv" in evidence(document)


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_healthy_deepspeed_is_ok_with_steps(rings: Path, stage: str) -> None:
    assert run_job(rings, "deepspeed_ranks", STAGE=stage)["status"] == "ok"

    run = open_run(rings)
    assert diagnose(run).status == "ok"
    assert "dp" in {comm.label for comm in run.communicators.values()}
    for rank in run.ranks:
        assert [step.number for step in rank.steps] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("stage", "fault", "kinds"),
    [
        ("1", "skipped_step", {"not_joined"}),
        ("3", "extra_forward", {"size_mismatch", "extra_call", "op_mismatch"}),
    ],
)
def test_deepspeed_rank_that_diverged_is_named_with_steps(
    rings: Path, stage: str, fault: str, kinds: set[str]
) -> None:
    document = run_job(rings, "deepspeed_ranks", STAGE=stage, FAULT=fault)

    assert document["verdict"]["kind"] in kinds
    assert document["verdict"]["diverging_ranks"] == [2]
    assert "in step" in evidence(document)
