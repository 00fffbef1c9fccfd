"""Processes that recorded without a rank are compared with those that share a communicator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Verdict, diagnose, open_run
from tests.support.programs import ROOT, run_program

# Starts a process for each entry, one after the other: its rank, the communicators with their
# members, and whether its 13th call is another one. Prints the pids.
JOB = """
import json, os, sys
import ncclscope

pids = []
for rank, comms, is_odd in json.loads(sys.argv[2]):
    pids.append(os.fork())
    if pids[-1] == 0:
        tracer = ncclscope.Tracer(sys.argv[1], rank=rank, world_size=4 if rank >= 0 else 0)
        for key, members in comms.items():
            comm = tracer.communicator(key, key.lower(), members, "gloo")
            for step in range(20):
                op = "all_gather" if is_odd and step == 12 else "all_reduce"
                tracer.record(comm, op, shape=(4,), dtype="float32", site="a.py:1 f")
            if "peer" in sys.argv:
                tracer.record(comm, "send", shape=(4,), dtype="float32", peer=1)
        tracer.close()
        os._exit(0)
    assert os.waitpid(pids[-1], 0)[1] == 0
print(json.dumps(pids))
"""
Process = tuple[int, dict[str, list[int]], bool]
PAIR, FOUR = {"W": [0, 1]}, {"W": [0, 1, 2, 3]}


def job(rings: Path, *processes: Process, more: str = "") -> tuple[list[int], Verdict]:
    """Return the pids of a job's processes, and the verdict on it."""
    done = run_program(JOB, rings, json.dumps(processes), more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), diagnose(open_run(rings))


def named(verdict: Verdict) -> list[int]:
    """Return the pids that the JSON document names."""
    cause = verdict.to_dict()["verdict"]
    return [one["pid"] for one in cause.get("processes", [])]


def test_two_that_differ_are_both_candidates(rings: Path) -> None:
    pids, verdict = job(rings, (-1, PAIR, False), (-1, PAIR, True))

    document = verdict.to_dict()
    cause = document["verdict"]
    assert (verdict.status, cause["kind"], cause["seq"]) == ("diverged", "op_mismatch", 13)
    assert (cause["diverging_ranks"], cause["candidate_ranks"]) == ([], [0, 1])
    assert named(verdict) == pids
    assert cause["confidence"] == "ambiguous"
    assert f"pids {pids[0]} {pids[1]} posted different calls" in cause["summary"]
    assert document["ranks"] == {"expected": 2, "read": 2, "missing": []}
    assert [(row["pid"], row["has_rank"]) for row in document["table"]] == [
        (pid, False) for pid in pids
    ]
    assert [*document["neighbourhood"]["ranks"]] == ["0", "1"]


def test_two_that_agree_are_ok(rings: Path) -> None:
    pids, verdict = job(rings, (-1, PAIR, False), (-1, PAIR, False))

    assert verdict.status == "ok"
    assert "All ranks agree" in verdict.summary
    assert str(pids[0]) in verdict.notes[0]


@pytest.mark.parametrize("members", [[0, 1, 2], []], ids=["known", "unknown"])
def test_of_three_the_one_that_differs_is_named(rings: Path, members: list[int]) -> None:
    comms = {"W": members}
    pids, verdict = job(rings, (-1, comms, False), (-1, comms, True), (-1, comms, False))

    assert named(verdict) == [pids[1]]
    assert verdict.cause is not None
    assert verdict.cause.confidence == "certain"
    assert verdict.summary.startswith(f"Pid {pids[1]} (")
    assert f"pids {pids[0]} {pids[2]} posted all_reduce" in verdict.summary


@pytest.mark.parametrize("odd", [1, 2])
def test_beside_ranks_each_has_its_name(rings: Path, odd: int) -> None:
    ranks = (0, 1, -1, -1)
    processes: list[Process] = [(rank, FOUR, place == odd) for place, rank in enumerate(ranks)]
    pids, verdict = job(rings, *processes)

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (odd,) if odd == 1 else named(verdict) == [pids[odd]]
    assert ("processes" in verdict.to_dict()["verdict"]) == (odd == 2)
    assert verdict.summary.startswith("Rank 1 (" if odd == 1 else f"Pid {pids[2]} (")
    assert f"w of ranks 0 1 and pids {pids[2]} {pids[3]}" in verdict.summary


def test_each_takes_a_place_that_all_its_communicators_leave(rings: Path) -> None:
    low, high = {**FOUR, "T0": [0, 1]}, {**FOUR, "T1": [2, 3]}
    order = [high, low, low, high]
    pids, verdict = job(rings, *((-1, comms, False) for comms in order))

    found = {rank.pid: int(rank.rank) for rank in verdict.run.ranks}
    assert verdict.status == "ok"
    assert {found[pids[1]], found[pids[2]]} == {0, 1}
    assert {found[pids[0]], found[pids[3]]} == {2, 3}


@pytest.mark.parametrize(
    "comms",
    [({"A": [0]}, {"B": [0]}), ({"A": [0]}, {"A": [0]}), ({"A": [0, 1]}, {"B": [0, 1]})],
    ids=["single", "single, one name", "of two pairs"],
)
def test_unrelated_ones_are_not_compared(
    rings: Path, comms: tuple[dict[str, list[int]], dict[str, list[int]]]
) -> None:
    _, verdict = job(rings, (-1, comms[0], False), (-1, comms[1], True))

    assert verdict.status == "ok"
    assert verdict.run.ranks == ()
    assert "2 processes recorded calls without a rank, on no communicator of an" in verdict.summary


def test_a_parent_that_records_nothing_is_no_member(rings: Path) -> None:
    _, verdict = job(rings, (-1, {}, False), (-1, PAIR, False), (-1, PAIR, False))

    assert verdict.status == "ok"
    assert (len(verdict.run.ranks), len(verdict.run.others)) == (2, 1)


def test_a_member_that_is_missing_is_no_rank_in_particular(rings: Path) -> None:
    _, verdict = job(rings, *[(-1, FOUR, False)] * 3)

    assert verdict.status == "incomplete"
    assert verdict.summary.startswith("1 further member left no record.")


def test_of_more_processes_than_members_the_newest_are_compared(rings: Path) -> None:
    job(rings, (-1, PAIR, False), (-1, PAIR, False))
    pids, verdict = job(rings, (-1, PAIR, False), (-1, PAIR, True))

    assert named(verdict) == pids


def test_sends_of_which_nobody_knows_the_sender_are_not_compared(rings: Path) -> None:
    _, verdict = job(rings, *[(-1, {"W": [0, 1, 2]}, False)] * 3, more="peer")

    assert verdict.cause is None
    assert any("sends and receives are not compared" in one for one in verdict.coverage.unseen)


LIVE = JOB.replace("tracer.close()", "print('ready', flush=True); sys.stdin.read()").replace(
    "    assert os.waitpid(pids[-1], 0)[1] == 0\n", ""
)


@pytest.mark.parametrize("members", [2, 3])
def test_watch_reports_them_while_they_run(rings: Path, members: int) -> None:
    comms = {"W": [*range(members)]}
    processes: list[Any] = [(-1, comms, place == 1) for place in range(members)]
    with subprocess.Popen(
        [sys.executable, "-c", LIVE, str(rings), json.dumps(processes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as running:
        try:
            assert running.stdout is not None
            lines = [running.stdout.readline() for _ in range(members + 1)]
            pids = json.loads(next(line for line in lines if line.startswith("[")))
            watch = [sys.executable, "-m", "ncclscope", "watch", str(rings), "--until-divergence"]
            done = subprocess.run(
                [*watch, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=60
            )
        finally:
            os.killpg(running.pid, signal.SIGKILL)
    assert done.returncode == 1, done.stderr
    cause = json.loads(done.stdout.splitlines()[-1])["verdict"]
    assert cause["kind"] == "op_mismatch"
    found = [one["pid"] for one in cause["processes"]]
    assert sorted(found) == (sorted(pids) if members == 2 else [pids[1]])
