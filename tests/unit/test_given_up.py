"""Calls that ranks gave up after a timeout, which the program caught."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope import Verdict, diagnose, open_run
from ncclscope.model import Activity, Rank
from tests.support.cluster import Cluster

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND
TIMEOUT = "RuntimeError: Application timeout caused pair closure"


def timed_out(directory: Path, op: str, seconds: float) -> Verdict:
    """Return the verdict where ranks 0 and 1 gave call 6 up, and the job ended in call 7.

    Rank 2 keeps Python's lock from call 5 on, so that it sends no heartbeat.
    """
    directory.mkdir()
    for rank in range(3):
        times = [0.01 * number for number in range(5)] + [0.05, 0.05 + seconds]
        calls = [
            {
                "call": op if seq == 6 else "all_reduce",
                "comm": "w",
                "seq": seq,
                "t_ns": START + int(since * SECOND),
                "shape": [4],
                "dtype": "float32",
                "redop": None if seq == 6 else "sum",
                "site": "train.py:7 step",
                "state": "completed" if seq < 6 else "scheduled",
            }
            for seq, since in enumerate(times[: 5 if rank == 2 else 7], 1)
        ]
        head = {"ncclscope_trace": 1, "rank": rank, "world_size": 3, "host": "a", "pid": 10 + rank}
        comm = {"comm": "w", "label": "world", "ranks": [0, 1, 2], "backend": "gloo"}
        lines = map(json.dumps, (head, comm, *calls))
        (directory / f"{rank}.jsonl").write_text("\n".join(lines))
    run = open_run(directory)
    end = START + int((seconds + 0.1) * SECOND)
    seen = (end, end + 1, START + SECOND // 100)
    details = ({"ended_with": TIMEOUT, "boot_id": "b"}, {"boot_id": "b"}, {"boot_id": "b"})
    ranks = [
        replace(
            rank,
            last_seen_ns=seen[rank.rank],
            alive=False,
            exited=rank.rank == 0,
            details={**rank.details, **details[rank.rank]},
        )
        for rank in run.ranks
    ]
    return diagnose(replace(run, ranks=tuple(ranks)))


def test_who_never_joined_a_barrier_that_timed_out_is_named(tmp_path: Path) -> None:
    verdict = timed_out(tmp_path / "rings", "monitored_barrier", 6.0)

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (2,))
    assert verdict.cause.seq == 6
    assert "in which ranks 0 1 waited for 6 s" in verdict.summary
    assert "No rank is recorded to wait" not in verdict.summary


@pytest.mark.parametrize(("op", "seconds"), [("monitored_barrier", 0.2), ("all_reduce", 6.0)])
def test_a_short_wait_or_a_handle_that_nobody_waits_for_is_none(
    tmp_path: Path, op: str, seconds: float
) -> None:
    assert timed_out(tmp_path / "rings", op, seconds).status != "hung"


@pytest.mark.parametrize(("site", "status"), [("model.py:10 all_reduce", "unknown"), ("a:1", "ok")])
def test_a_last_call_that_raised_on_all_ranks_is_no_agreement(
    tmp_path: Path, site: str, status: str
) -> None:
    """All of them caught the timeout, and exited normally; elsewhere it is none of the call's."""
    cluster = Cluster(tmp_path, 3)
    cluster.history("world")
    cluster.post(cluster.everybody, "world", done=False)
    run = cluster.run(quiet=0.1)

    def caught(rank: Rank) -> Rank:
        error = Activity("raised", f"RuntimeError at {site}", 0, 1, 1, 1)
        return replace(rank, exited=True, activities={"raised": error})

    verdict = diagnose(replace(run, ranks=tuple(map(caught, run.ranks))))

    assert (verdict.status, verdict.cause) == (status, None)
    assert ("raised in call 6 on world" in verdict.summary) == (status == "unknown")
