"""Progress on the device, over NCCL: `pytest -m gpu tests/gpu/test_device_progress.py`.

Two GPUs are enough. All output is kept where NCCLSCOPE_TRANSCRIPTS names a directory.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.engine.verdict import Verdict
from ncclscope.launch.processes import Outcome, run_ranks
from ncclscope.model import Call
from ncclscope.model.device import DeviceProgress
from tests.gpu.asking import ask, keep
from tests.gpu.graph_programs import DIVERGING, LAYERS, agree, differ
from tests.gpu.host import SEATS
from tests.gpu.progress_programs import BEFORE, asleep, cost, outside

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("two_gpus"), pytest.mark.timeout(180)]

RANKS = max(2, min(4, SEATS))
STALL = 5.0


@pytest.mark.parametrize(
    ("mode", "pieces"),
    [("1", [4, *[1] * (RANKS - 1)]), ("entered", [1] * RANKS)],
    ids=["finished, pieces on rank 0", "entered, full"],
)
def test_everything_has_finished(
    rings: Path, monkeypatch: pytest.MonkeyPatch, mode: str, pieces: list[int]
) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", mode)
    replays = 1000
    outcome = run_ranks(agree, pieces, replays, ranks=RANKS, rings=rings, backend="nccl")
    verdict = diagnose(open_run(rings))
    _keep_progress(f"progress agree {mode}", verdict, outcome)

    gathered = 8.0 * sum(range(1, RANKS + 1))
    assert (outcome.ending, outcome.results) == ("finished", [(gathered, 8.0 * RANKS**4)] * RANKS)
    assert verdict.status == "ok"
    for rank in range(RANKS):
        pending = _progress(verdict, rank)
        assert pending.unknown == ""
        assert pending.finished == pending.handed_over == pending.posted
        assert pending.posted >= (replays + 1) * len(LAYERS) + replays + len(LAYERS)
        assert pending.entered == (pending.posted if mode == "entered" else None)
        assert pending.at is None


def test_a_rank_that_is_asleep(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "entered")
    outcome = run_ranks(asleep, ranks=RANKS, rings=rings, backend="nccl", stall_after=STALL)
    verdict = diagnose(open_run(rings))  # of processes that SIGKILL has ended
    _keep_progress("progress-asleep", verdict, outcome)
    found = ask("progress-asleep", "diagnose", "diagnose", rings)["verdict"]

    assert outcome.ending == "stalled"
    odd = _progress(verdict, DIVERGING)
    assert odd.unknown == ""
    assert odd.finished == odd.entered == odd.posted
    assert odd.posted >= BEFORE
    for rank in range(RANKS):
        if rank != DIVERGING:
            pending = _progress(verdict, rank)
            assert (pending.finished, pending.entered) == (odd.posted, odd.posted + 1)
            assert (pending.at, pending.is_inside) == (odd.posted + 1, True)
    assert (found["kind"], found["diverging_ranks"]) == ("not_joined", [DIVERGING])
    assert found["seq"] == odd.posted + 1
    assert any("has been entered but not finished" in line for line in found["evidence"])


def test_a_rank_whose_stream_is_behind_something_else(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "entered")
    outcome = run_ranks(outside, ranks=RANKS, rings=rings, backend="nccl", stall_after=STALL)
    verdict = diagnose(open_run(rings))
    _keep_progress("progress-outside", verdict, outcome)
    found = ask("progress-outside", "diagnose", "diagnose", rings)["verdict"]

    assert outcome.ending == "stalled"
    for rank in range(RANKS):
        pending = _progress(verdict, rank)
        assert pending.unknown == ""
        assert pending.finished == pending.posted - 3
        assert pending.is_inside is (rank != DIVERGING)
    assert (found["kind"], found["diverging_ranks"]) == ("not_joined", [DIVERGING])
    assert any("earlier work blocks its stream" in line for line in found["evidence"])


def test_an_order_swap_in_a_graph(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "entered")
    outcome = run_ranks(
        differ, "swapped", ranks=RANKS, rings=rings, backend="nccl", stall_after=STALL
    )
    verdict = diagnose(open_run(rings))
    _keep_progress("progress-swapped", verdict, outcome)
    found = ask("progress-swapped", "diagnose", "diagnose", rings)["verdict"]

    assert outcome.ending == "stalled"
    assert found["kind"] == "op_mismatch"
    assert found["diverging_ranks"] == ([DIVERGING] if RANKS > 2 else [])
    waiting = 0
    for rank in range(RANKS):
        pending = _progress(verdict, rank)
        assert pending.unknown == ""
        call = _call(verdict, rank)
        if call is None:
            continue  # NCCL may let it get through
        waiting += 1
        assert call.replay is not None
        assert call.replay.call >= 5
        assert call.seq >= found["seq"]
        assert call.site is not None
        assert "graph_programs" in call.site
    assert waiting > 0
    assert any(line.startswith("on the device of rank") for line in found["evidence"])


@pytest.mark.real_gpus(2)
def test_what_markers_cost(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "1")
    outcome = run_ranks(cost, ranks=2, rings=rings, backend="nccl")
    assert outcome.ending == "finished", outcome.failures
    keep("progress-cost", "figures.json", json.dumps(outcome.results, indent=1))
    print(json.dumps(outcome.results[0], indent=1))

    for found in outcome.results:
        node = {name: least for name, (least, _) in found["node"].items()}
        assert node["finished"] - node["without"] < 10
        assert node["entered"] - node["without"] < 20
        assert node["both"] - node["without"] < 20
        assert found["counted"].pop("without") == 0
        assert set(found["counted"].values()) == {1}


def _progress(verdict: Verdict, rank: int) -> DeviceProgress:
    """Return the position of a rank on the communicator of all ranks, which is counted."""
    found = verdict.run.by_rank[rank]
    (pending,) = [pending for pending in found.device.values() if pending.posted]
    return pending


def _call(verdict: Verdict, rank: int) -> Call | None:
    found = verdict.run.by_rank[rank]
    ((key, pending),) = [(key, pending) for key, pending in found.device.items() if pending.posted]
    return None if pending.at is None else found.logs[key].call(pending.at)


def _keep_progress(case: str, verdict: Verdict, outcome: Outcome) -> None:
    """Keep the counts before anything is asserted of them."""
    pending_calls = {
        rank.rank: {key: pending.to_dict() for key, pending in rank.device.items()}
        for rank in verdict.run.ranks
    }
    reports = {
        "stands": pending_calls,
        "notes": verdict.notes,
        "status": verdict.status,
        "ending": outcome.ending,
        "failures": [(each.rank, each.error, each.trace) for each in outcome.failures],
        "output": dict(outcome.output),
    }
    print(json.dumps(reports, indent=1))  # shown where the test fails
    keep(case.replace(" ", "-"), "stands.json", json.dumps(reports, indent=1))
