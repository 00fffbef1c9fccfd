"""Each fault, run for real with four processes on gloo."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ncclscope
from ncclscope.lab.faults import FAULTS
from ncclscope.lab.launcher import Laboratory
from ncclscope.lab.plan import Program
from ncclscope.lab.progress import Phase, Progress
from ncclscope.model import Call, Rank, Run
from tests.support.laboratories import warm_laboratories

# What gloo makes of each: a rank that waits in vain, a process that dies, or wrong data.
STALLED = (
    "divergent_dispatch",
    "skipped_call",
    "extra_call",
    "wrong_op",
    "wrong_root",
    "captured_call",
    "wrong_peer",
    "order_swap",
    "sleeping_rank",
    "frozen_rank",
    "silent_link",
    "zero_token_skip",
)
FAILED = ("wrong_size", "stale_sizes", "killed_rank")
FINISHED = ("wrong_dtype", "wrong_redop", "reordered_group", "none")
OUTCOMES = {
    **dict.fromkeys(STALLED, "stalled"),
    **dict.fromkeys(FAILED, "failed"),
    **dict.fromkeys(FINISHED, "finished"),
}


FAST = ("divergent_dispatch", "skipped_call", "wrong_op", "sleeping_rank", "killed_rank", "none")
"""The others run in `make test-all` only."""


@dataclass(frozen=True)
class Result:
    """One run, after its end."""

    program: Program
    outcome: str
    statuses: Mapping[int, int]
    progress: Progress
    run: Run
    foreign_maps: set[str]
    survivors: list[int]

    @property
    def odd(self) -> Rank:
        return self.run.by_rank[self.program.fault_rank]

    @property
    def peer(self) -> Rank:
        """The next rank of the same replica, with which it shares the program."""
        replica = self.program.replica(self.program.place(self.program.fault_rank)[0])
        place = replica.index(self.program.fault_rank)
        return self.run.by_rank[replica[(place + 1) % len(replica)]]

    def calls(self, rank: Rank, label: str) -> list[Call]:
        for key, log in rank.logs.items():
            if self.run.communicators[key].label == label:
                return list(log.span(1, log.calls + 1))
        raise KeyError(label)

    def first_difference(self, label: str) -> tuple[Call, Call]:
        ours, theirs = self.calls(self.odd, label), self.calls(self.peer, label)
        return next(
            (a, b) for a, b in zip(ours, theirs, strict=False) if a.signature != b.signature
        )


Runner = Callable[[str], Result]


@pytest.fixture(autouse=True, scope="module")
def _warm() -> Iterator[None]:
    with warm_laboratories():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Run a fault when it is first asked for."""
    return cache(lambda fault: perform(program(fault), tmp_path_factory.mktemp(fault)))


def program(fault: str, **changed: Any) -> Program:
    # Rank 2 waits for the wrong root in wrong_root; with other ranks the broadcast completes.
    arguments = {"tp": 2, "dp": 2, "layers": 4, "steps": 4, "fault_step": 2, "fault_rank": 2}
    return Program(fault=fault, seed=1, **{**arguments, **changed})


def perform(program: Program, directory: Path) -> Result:
    foreign: set[str] = set()
    with Laboratory(program, directory / "rings") as laboratory:
        # Patience costs nothing where the end comes by itself.
        for progress in laboratory.watch(10 if OUTCOMES[program.fault] == "finished" else 1):
            if progress.ready == program.world_size:
                foreign |= {name for pid in laboratory.pids for name in shared_maps(pid, directory)}
        laboratory.kill()
    return Result(
        program=program,
        outcome=laboratory.outcome,
        statuses=laboratory.statuses,
        progress=progress,
        run=ncclscope.open_run(directory / "rings"),
        foreign_maps=foreign,
        survivors=[pid for pid in laboratory.pids if os.path.exists(f"/proc/{pid}")],
    )


def shared_maps(pid: int, directory: Path) -> set[str]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    names = {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}
    return {name for name in names if str(directory) not in name}


def matches(call: Call, expected: Mapping[str, Any]) -> bool:
    actual = call.to_dict()
    return all(actual[name] == value for name, value in expected.items())


def test_every_fault_is_tested() -> None:
    assert OUTCOMES.keys() == FAULTS.keys()


@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=() if one in FAST else pytest.mark.slow) for one in FAULTS]
)
def test_a_run_ends_the_way_its_fault_says(run: Runner, fault: str) -> None:
    result = run(fault)
    assert result.outcome == OUTCOMES[fault]
    last = {"finished": 4}.get(result.outcome, 2)
    steps = [rank.step for rank in result.progress.ranks]
    if fault == "captured_call":
        assert steps.pop(2) == 3  # it does not wait for the call, and goes on
    assert set(steps) == {last}
    assert result.run.missing == ()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_leaves_only_its_rings(run: Runner, fault: str) -> None:
    result = run(fault)
    assert result.survivors == []
    assert result.foreign_maps == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_up_to_the_fault_all_ranks_of_a_group_agree(run: Runner, fault: str) -> None:
    result = run(fault)
    for key, comm in result.run.communicators.items():
        before = set()
        for number in comm.ranks:
            rank = result.run.by_rank[number]
            start = next(step.position for step in rank.steps if step.number == 2)
            log = rank.logs[key]
            calls = log.span(1, log.calls + 1)
            before.add(tuple(call.signature for call in calls if call.position < start))
        assert len(before) == 1


@pytest.mark.parametrize(
    "fault",
    [
        "divergent_dispatch",
        "wrong_op",
        "wrong_size",
        "wrong_dtype",
        "wrong_redop",
        "wrong_root",
        "stale_sizes",
        "captured_call",
        "reordered_group",
    ],
)
def test_the_first_difference_is_what_was_planted(run: Runner, fault: str) -> None:
    result = run(fault)
    planted = result.program.planted()
    odd, peers = result.first_difference(planted["comm"]["label"])
    assert matches(odd, planted["odd"])
    assert matches(peers, planted["peers"])
    step = next(step for step in result.odd.steps if step.number == planted["step"])
    assert odd.position > step.position


def test_a_divergent_dispatch_moves_as_many_calls_as_it_says(run: Runner) -> None:
    result = run("divergent_dispatch")
    extent = result.program.planted()["extent"]
    counts = {
        label: len(result.calls(result.odd, label)) - len(result.calls(result.peer, label))
        for label in ("tp:0", "dp:0", "world")
    }
    assert extent == 4
    assert counts == {"tp:0": extent, "dp:0": -extent, "world": 0}


@pytest.mark.parametrize(
    ("fault", "label", "difference"),
    [("skipped_call", "tp:0", -1), ("extra_call", "tp:0", 1), ("zero_token_skip", "dp:0", -1)],
)
def test_one_call_is_missing_or_too_many(
    run: Runner, fault: str, label: str, difference: int
) -> None:
    result = run(fault)
    planted = result.program.planted()
    assert planted["comm"]["label"] == label
    ours, theirs = result.calls(result.odd, label), result.calls(result.peer, label)
    assert len(ours) - len(theirs) == difference
    expected = planted["peers"] or planted["odd"]
    counts = [sum(matches(call, expected) for call in calls) for calls in (ours, theirs)]
    assert counts[0] - counts[1] == difference


def test_the_idle_replica_is_recorded_as_one(run: Runner) -> None:
    steps = {step.number: step for step in run("zero_token_skip").odd.steps}
    assert (steps[2].tokens, steps[2].dummy) == (0, True)
    assert not steps[1].dummy


def test_an_order_swap_shows_in_no_communicator_by_itself(run: Runner) -> None:
    result = run("order_swap")
    planted = result.program.planted()
    labels = (planted["comm"]["label"], planted["other_comm"]["label"])
    for label in labels:
        ours, theirs = result.calls(result.odd, label), result.calls(result.peer, label)
        assert [call.signature for call in ours] == [call.signature for call in theirs]
    last = [
        [result.calls(rank, label)[-1].position for label in labels]
        for rank in (result.odd, result.peer)
    ]
    assert last[0][0] > last[0][1]
    assert last[1][0] < last[1][1]


@pytest.mark.parametrize("fault", ["sleeping_rank", "killed_rank"])
def test_an_absent_rank_posted_all_that_came_before(run: Runner, fault: str) -> None:
    result = run(fault)
    planted = result.program.planted()
    label = planted["comm"]["label"]
    ours, theirs = result.calls(result.odd, label), result.calls(result.peer, label)
    assert [call.signature for call in ours] == [call.signature for call in theirs[: len(ours)]]
    assert matches(theirs[len(ours)], planted["peers"])
    assert {call.state.word for call in ours} == {"completed"}
    assert not result.odd.exited


def test_a_captured_call_is_recorded_as_one_and_not_carried_out(run: Runner) -> None:
    result = run("captured_call")
    ours, theirs = result.calls(result.odd, "world"), result.calls(result.peer, "world")
    (captured,) = [call for call in ours if call.captured]
    assert captured.state.word == "scheduled"
    assert not any(call.captured for call in theirs)
    assert theirs[captured.seq - 1].state.word == "started"
    # The rank has gone on: it is in a call of the next step.
    last = result.odd.last_call()
    assert last is not None
    assert last.position > captured.position
    assert last.state.word == "started"


def test_a_send_to_the_wrong_rank_and_the_receive_it_was_meant_for_stay(run: Runner) -> None:
    result = run("wrong_peer")
    ranks = {}
    for number, rank in result.run.by_rank.items():
        (sent,) = rank.p2p.values()
        assert len(sent) == 4
        ranks[number] = sent
    # Rank 2 of four receives last, and sends to rank 0 what is meant for rank 3.
    first, second = ranks[2][2:]
    assert (first.op, first.peer, first.state.word) == ("send", 0, "started")
    assert (second.op, second.peer, second.state.word) == ("recv", 1, "scheduled")
    first, second = ranks[3][2:]
    assert (first.op, first.peer, first.state.word) == ("recv", 2, "started")
    assert (second.op, second.peer, second.state.word) == ("send", 0, "scheduled")


def test_the_calls_of_a_group_are_those_of_the_peers_in_another_order(run: Runner) -> None:
    result = run("reordered_group")
    ours, theirs = result.calls(result.odd, "world"), result.calls(result.peer, "world")
    differing = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.signature != b.signature]
    assert len({call.group for pair in differing for call in pair}) == 1
    odd, peers = zip(*differing, strict=True)
    assert sorted(call.numel or 0 for call in odd) == sorted(call.numel or 0 for call in peers)
    assert {call.state.word for call in (*ours, *theirs)} == {"completed"}
    assert {rank.wrong_since for rank in result.progress.ranks} == {0}


def test_behind_a_silent_link_all_live_in_the_same_call(run: Runner) -> None:
    result = run("silent_link")
    assert result.statuses == {}
    replica = [result.odd, result.peer]
    standing = [
        next(call for call in result.calls(rank, "tp:0") if call.state.word != "completed")
        for rank in replica
    ]
    assert len({call.seq for call in standing}) == 1
    assert {call.state.word for call in standing} == {"started"}
    for rank, call in zip(replica, standing, strict=True):
        assert matches(call, result.program.planted()["peers"])
        assert rank.last_seen_ns is not None
        assert call.time_ns is not None
        assert rank.last_seen_ns - call.time_ns > 1e9


def test_a_frozen_rank_has_posted_the_call_and_shows_no_life(run: Runner) -> None:
    result = run("frozen_rank")
    assert result.statuses == {}
    last = result.odd.last_call()
    assert last is not None
    assert (last.op, last.state.word) == ("all_reduce", "scheduled")
    (standing,) = [call for call in result.calls(result.peer, "tp:0") if call.seq == last.seq]
    assert standing.state.word == "started"
    assert result.odd.last_seen_ns is not None
    assert result.peer.last_seen_ns is not None
    assert result.peer.last_seen_ns - result.odd.last_seen_ns > 1e9


def test_the_way_a_process_ended_is_known(run: Runner) -> None:
    assert run("killed_rank").statuses[2] == -9
    # gloo aborts the process that receives more than it has room for.
    assert run("wrong_size").statuses[2] == -6
    assert run("stale_sizes").statuses[2] == -6
    assert set(run("none").statuses.values()) == {0}


def test_a_rank_whose_collective_fails_says_why_and_stays(run: Runner) -> None:
    result = run("killed_rank")
    broken = [
        number for number, rank in enumerate(result.progress.ranks) if rank.phase is Phase.BROKEN
    ]
    assert broken
    for number in broken:
        assert "RuntimeError" in result.run.by_rank[number].details["last_error"]
    assert result.statuses.keys() == {2}


def test_a_healthy_run_has_right_results_and_completes_every_call(run: Runner) -> None:
    result = run("none")
    for number, rank in enumerate(result.progress.ranks):
        assert rank.phase is Phase.FINISHED
        assert rank.wrong_since == 0
        recorded = sum(log.calls for log in result.run.by_rank[number].logs.values())
        assert rank.posted == rank.completed == recorded
        assert result.run.by_rank[number].exited
        last = result.run.by_rank[number].last_calls()
        assert {call.state.word for call in last.values()} == {"completed"}


@pytest.mark.parametrize("fault", ["wrong_dtype", "wrong_redop"])
def test_a_mismatch_that_completes_makes_wrong_results(run: Runner, fault: str) -> None:
    wrong = {n for n, rank in enumerate(run(fault).progress.ranks) if rank.wrong_since == 2}
    assert wrong >= {2}
    assert wrong <= {2, 3}


def test_groups_whose_sizes_do_not_divide_have_right_results(tmp_path: Path) -> None:
    result = perform(program("none", tp=3, dp=2, steps=2), tmp_path)
    assert result.outcome == "finished"
    assert {rank.wrong_since for rank in result.progress.ranks} == {0}


def test_every_process_says_where_it_belongs(run: Runner) -> None:
    result = run("divergent_dispatch")
    assert [rank.labels for rank in result.run.ranks] == [
        {"tp": "0", "dp": "0"},
        {"tp": "1", "dp": "0"},
        {"tp": "0", "dp": "1"},
        {"tp": "1", "dp": "1"},
    ]
    assert {(comm.label, comm.ranks) for comm in result.run.communicators.values()} == {
        ("world", (0, 1, 2, 3)),
        ("tp:0", (0, 1)),
        ("tp:0", (2, 3)),
        ("dp:0", (0, 2)),
        ("dp:0", (1, 3)),
    }
    assert {comm.backend for comm in result.run.communicators.values()} == {"gloo"}


def test_the_same_seed_gives_the_same_records(run: Runner, tmp_path: Path) -> None:
    first = run("divergent_dispatch")
    again = perform(first.program, tmp_path)
    assert [stream(first.run, rank) for rank in first.run.ranks] == [
        stream(again.run, rank) for rank in again.run.ranks
    ]


def stream(run: Run, rank: Rank) -> list[tuple[object, ...]]:
    """All that a rank posted, in order, without what differs from run to run."""
    calls = [call for log in rank.logs.values() for call in log.span(1, log.calls + 1)]
    return [
        (
            call.position,
            run.communicators[call.comm].label,
            *(call.op, call.shape, call.dtype, call.redop, call.root, call.sizes, call.site),
        )
        for call in sorted(calls, key=lambda call: call.position)
    ]


def test_the_call_site_is_a_line_of_the_engine_or_of_the_fault(run: Runner) -> None:
    odd, peers = run("divergent_dispatch").first_difference("tp:0")
    assert (odd.site or "").startswith("dispatch.py:")
    assert (odd.site or "").endswith(" dispatch")
    assert (peers.site or "").startswith("engine.py:")
    assert (peers.site or "").endswith(" reduce_experts")
