"""Collectives inside CUDA graphs, over NCCL: `pytest -m gpu tests/gpu/test_cuda_graphs.py`.

With three GPUs or more the records single out the rank that differs, with two the two ranks are
named together. All output is kept where NCCLSCOPE_TRANSCRIPTS names a directory.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.launch.processes import run_ranks
from tests.gpu.asking import ask, keep
from tests.gpu.graph_programs import DIVERGING, LAYERS, agree, differ, replay_cost
from tests.gpu.host import SEATS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("two_gpus"), pytest.mark.timeout(300)]

RANKS = max(2, min(4, SEATS))
STALL = 5.0


@pytest.mark.parametrize(
    "pieces",
    [[1] * RANKS, [4] * RANKS, [4, *[1] * (RANKS - 1)]],
    ids=["full", "piecewise", "pieces on rank 0 alone"],
)
def test_replays_that_agree(rings: Path, pieces: list[int]) -> None:
    replays = 20
    outcome = run_ranks(agree, pieces, replays, ranks=RANKS, rings=rings, backend="nccl")

    gathered = 8.0 * sum(range(1, RANKS + 1))
    assert (outcome.ending, outcome.results) == (
        "finished",
        [(gathered, 8.0 * RANKS**4)] * RANKS,
    )
    verdict = diagnose(open_run(rings))
    assert verdict.status == "ok"
    for rank in verdict.run.ranks:
        calls = [
            call
            for log in rank.logs.values()
            for call in log.span(log.first, log.calls + 1)
            if call.replay is not None
        ]
        assert len(calls) == (replays + 1) * len(LAYERS)
        assert len(rank.graphs) == 2 * pieces[rank.rank]
        assert not any(
            call.captured for log in rank.logs.values() for call in log.span(1, log.calls + 1)
        )
        # A barrier and the like are posted beside them, and a replay is one record.
        assert rank.records < len(calls)


@pytest.mark.parametrize(
    ("fault", "kind", "place"),
    [
        ("swapped", "op_mismatch", 5),
        ("other graph", "capture_mismatch", 1),
        ("eager", "capture_mismatch", 1),
        ("behind", "dead_rank", 1),
    ],
)
def test_a_rank_that_differs(rings: Path, fault: str, kind: str, place: int) -> None:
    outcome = run_ranks(differ, fault, ranks=RANKS, rings=rings, backend="nccl", stall_after=STALL)

    # NCCL may let a rank get through that replays another size, or posts what others replay.
    case = f"graph {fault}".replace(" ", "-")
    found = ask(case, "diagnose", "diagnose", rings)["verdict"]
    keep(case, "ending.json", json.dumps({"ending": outcome.ending, "waiting": outcome.waiting}))
    if fault in ("swapped", "behind"):
        assert outcome.ending == "stalled"
    singled = RANKS > 2 or fault == "behind"
    assert found["diverging_ranks"] == ([DIVERGING] if singled else [])
    assert found["candidate_ranks"] == ([] if singled else [0, 1])
    assert found["kind"] == kind
    replay = found["peers"]["replay"] or found["odd"]["replay"]
    assert replay is not None
    assert (replay["call"], replay["calls"]) == (place, len(LAYERS))


@pytest.mark.real_gpus(2)
def test_what_a_replay_costs_the_host(rings: Path) -> None:
    found = {}
    for calls in (1, 62, 200):
        folder = rings / str(calls)
        folder.mkdir()
        outcome = run_ranks(replay_cost, calls, 300, ranks=RANKS, rings=folder, backend="nccl")
        found[calls] = outcome.results[0]
        assert open_run(folder).ranks[0].graphs
    keep("graph-cost", "nanoseconds.json", json.dumps(found, indent=1))

    # Where a launch is short it shows what a record adds; long ones take more or less as it comes.
    short = found[1]
    assert short["recorded"] - short["not recorded"] < 5000
    for taken in found.values():
        assert taken["recorded"] < 1.5 * taken["not recorded"] + 5000
