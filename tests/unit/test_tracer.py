"""The tracer: what a program hands it is what a reader gets."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Tracer, open_run, procfs
from ncclscope.model import State
from ncclscope.model.signature import sign
from ncclscope.ring import layout
from ncclscope.tracing import identity, scope
from tests.support.programs import run_program
from tests.support.rings import SMALL, check_log, fill, read, tracer_in

pytestmark = pytest.mark.both_writers


def test_everything_that_is_recorded_is_read(rings: Path) -> None:
    tracer = tracer_in(rings, rank=3, world_size=8, labels={"tp": "1", "dp": "1"})
    comm = tracer.communicator("KEY", "tp:0", [2, 3], "nccl")
    tracer.record(
        comm,
        "scatterv",
        shape=(14, 256),
        dtype="torch.bfloat16",
        redop="ReduceOp.SUM",
        root=1,
        sizes=[14, 16],
        out_shape=(30, 256),
        site="moe.py:7 dispatch",
        state=1,
        captured=True,
        graph=77,
    )
    tracer.record(comm, "isend", shape=(5,), dtype="int8", peer=1, site="pp.py:3 send")

    rank = read(tracer.path)

    assert (rank.rank, rank.world_size, rank.labels) == (3, 8, {"tp": "1", "dp": "1"})
    log = rank.logs["KEY"]
    assert (log.communicator.label, log.communicator.ranks) == ("tp:0", (2, 3))
    assert log.communicator.backend == "nccl"
    call = log.call(1)
    assert (call.op, call.dtype, call.redop, call.root, call.peer) == (
        "scatterv",
        "bfloat16",
        "sum",
        1,
        None,
    )
    assert (call.shape, call.numel, call.sizes, call.out_shape) == (
        (14, 256),
        14 * 256,
        (14, 16),
        (30, 256),
    )
    assert (call.site, call.state, call.captured, call.graph) == (
        "moe.py:7 dispatch",
        State.STARTED,
        True,
        77,
    )
    assert call.group is None
    assert call.time_ns is not None
    assert rank.started_ns is not None
    assert rank.last_seen_ns is not None
    assert rank.started_ns <= call.time_ns <= rank.last_seen_ns + 10**9
    (sent,) = rank.p2p["KEY"]
    assert (sent.op, sent.peer, sent.root, sent.seq, sent.position) == ("send", 1, None, 1, 1)
    assert log.calls == 1


def test_what_a_process_says_of_itself(rings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLSCOPE_RUN", "run-7")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(identity, "_DRIVERS", ("/dev/null",))
    tracer = tracer_in(rings)
    tracer.describe(rank=5, world_size=9, engine="core")

    rank = read(tracer.path)

    assert (rank.rank, rank.world_size) == (tracer.rank, tracer.world_size) == (5, 9)
    assert (rank.host, rank.pid, rank.gpu) == (socket.gethostname(), os.getpid(), 2)
    assert rank.details["run"] == "run-7"
    assert rank.details["engine"] == "core"
    assert rank.details["python"] == ".".join(map(str, sys.version_info[:3]))
    assert rank.details["versions"]["ncclscope"]
    assert rank.details["argv"]
    assert rank.details["start_ticks"] == procfs.start_ticks(os.getpid()) > 0
    assert rank.alive is True


@pytest.mark.parametrize("shape", [(), (0,), (7,), (1, 2, 3, 4), (2, 3, 4, 5, 6, 7), (1 << 33, 2)])
def test_shapes_of_any_number_of_dimensions(rings: Path, shape: tuple[int, ...]) -> None:
    tracer = tracer_in(rings)
    tracer.record(tracer.communicator("k"), "all_reduce", shape=shape, site="x")

    call = read(tracer.path).logs["k"].call(1)

    expected = shape if len(shape) <= 4 else (2, 3, 4, 210)
    assert call.shape == tuple(min(size, 0xFFFFFFFF) for size in expected)
    numel = 1
    for size in shape:
        numel *= size
    assert call.numel == numel
    assert call.signature == sign("all_reduce", shape=shape)


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": (-1, 1 << 70), "numel": -5},
        {"numel": 1 << 80},
        {"root": 1 << 40},
        {"root": -7},
        {"sizes": [1 << 80]},
        {"graph": 1 << 50, "captured": True},
    ],
)
def test_numbers_that_no_record_can_hold_do_not_stop_the_program(
    rings: Path, fields: dict[str, Any]
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    fill(tracer, comm, 1, 3)
    tracer.record(comm, "all_gatherv", **fields)
    fill(tracer, comm, 4, 6)

    log = read(tracer.path).logs["k"]

    assert [call.seq for call in log.span(1, 6)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"shape": ("x", 2)}, (struct.error, TypeError)),
        ({"shape": 5}, TypeError),
        ({"shape": ([1],)}, TypeError),
        ({"state": 300}, (IndexError, struct.error, ValueError)),
        ({"state": "started"}, (struct.error, TypeError)),
    ],
)
def test_a_call_that_cannot_be_recorded_leaves_no_gap(
    rings: Path, fields: dict[str, Any], error: Any
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "tp:0", [0])
    fill(tracer, comm, 1, 3)
    with pytest.raises(error):
        tracer.record(comm, "all_reduce", **fields)
    fill(tracer, comm, 3, 6)

    check_log(read(tracer.path).logs["k"], 1, 5)
    assert tracer.ring.position == 5


def test_a_communicator_is_made_once(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "tp:0", [0, 1], "nccl")

    assert tracer.communicator("k", "other", [5], "gloo") is comm
    tracer.relabel(comm, "")
    tracer.relabel(comm, "tp:0")
    tracer.relabel(comm, "ep:1")
    tracer.ring.update_channel(comm.channel, {"ranks": [0, 1, 2]})
    tracer.record(comm, "barrier")

    (communicator,) = open_run(rings).communicators.values()
    assert (communicator.label, communicator.ranks) == ("ep:1", (0, 1, 2))
    assert communicator.backend == "nccl"
    assert "ep:1" in repr(comm)


def test_as_many_communicators_as_a_ring_can_hold(rings: Path) -> None:
    tracer = tracer_in(rings, capacity=65_536)
    held = [
        tracer.communicator(f"k{number}", f"c:{number}", [0]) for number in range(layout.MAX_COMMS)
    ]
    for comm in held:
        fill(tracer, comm, 1, 4)
    fill(tracer, tracer.communicator("one more"), 1, 4)
    fill(tracer, tracer.communicator("k0"), 4, 1500)

    rank = read(tracer.path)

    assert rank.records == 3 * layout.MAX_COMMS + 3 + 1496
    assert set(rank.logs) == {f"k{number}" for number in range(layout.MAX_COMMS)}
    for number in (1, 511, 512, layout.MAX_COMMS - 1):
        check_log(rank.logs[f"k{number}"], 1, 3)
    check_log(rank.logs["k0"], 1, 1499)


def test_states_are_set_in_place(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    positions = [tracer.record(comm, "all_reduce", shape=(n,), site="x") for n in range(3)]
    tracer.start(positions[0])
    tracer.complete(positions[1])

    calls = read(tracer.path).logs["k"].span(1, 4)

    assert [call.state for call in calls] == [State.STARTED, State.COMPLETED, State.SCHEDULED]
    assert [call.shape for call in calls] == [(0,), (1,), (2,)]


def test_the_state_of_a_record_that_is_gone_is_not_set_on_another(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    first = tracer.record(comm, "barrier", site="x")
    fill(tracer, comm, 2, SMALL + 1)
    tracer.complete(first)  # still there, in the last moment
    assert read(tracer.path).logs["k"].call(1).state == State.COMPLETED
    fill(tracer, comm, SMALL + 1, SMALL + 2)
    tracer.complete(first)

    states = {call.state for call in read(tracer.path).logs["k"].span(1, SMALL + 2)}

    assert states == {State.SCHEDULED}


def test_steps_are_where_they_were_taken(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    tracer.step(1, tokens=16)
    fill(tracer, comm, 1, 3)
    tracer.step(2, tokens=0, dummy=True)
    tracer.step(3)
    fill(tracer, comm, 3, 4)
    tracer.step(-1)
    tracer.step(1 << 70, tokens=1 << 70)

    rank = read(tracer.path)

    assert [step.number for step in rank.steps[3:]] == [0, layout.MOST]
    assert [(step.number, step.position, step.tokens, step.dummy) for step in rank.steps[:3]] == [
        (1, 0, 16, False),
        (2, 3, 0, True),
        (3, 4, None, False),
    ]
    check_log(rank.logs["k"], 1, 3)


def test_calls_of_one_group_have_its_number(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")

    def record(number: int) -> None:
        tracer.record(comm, "all_reduce", shape=(number,), site="x")

    record(0)
    scope.enter_group()
    record(1)
    scope.enter_group()
    record(2)
    scope.leave_group()
    record(3)
    scope.leave_group()
    record(4)
    scope.enter_group()
    other = threading.Thread(target=record, args=(5,))
    other.start()
    other.join()
    record(6)
    scope.leave_group()
    scope.leave_group()  # one too many does no harm

    groups = [call.group for call in read(tracer.path).logs["k"].span(1, 8)]

    assert groups[0] is groups[4] is groups[5] is None
    assert groups[1] == groups[2] == groups[3]
    assert None is not groups[6] != groups[1]
    assert not scope.groups


@pytest.mark.parametrize(
    ("group", "kept"), [(1, 1), (65_535, 65_535), (65_536, 1), (131_070, 65_535), (1 << 40, 256)]
)
def test_a_groups_number_is_never_cut_down_to_none(rings: Path, group: int, kept: int) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    template = tracer.template(comm, "barrier")
    tracer.post(comm.channel, template.fixed, template.signature, 0, 0, group)
    assert read(tracer.path).logs["k"].call(1).group == kept


def test_suppressed_calls_nest(rings: Path) -> None:
    assert not scope.is_suppressed()
    with scope.suppressed():
        with scope.suppressed():
            assert scope.is_suppressed()
        assert scope.is_suppressed()
        seen = []
        other = threading.Thread(target=lambda: seen.append(scope.is_suppressed()))
        other.start()
        other.join()
        assert seen == [False]
    # Threads of other tests may be stuck in a block of theirs: that is what they test.
    assert threading.get_ident() not in scope.suppressing


def test_parameters_that_are_new_each_time_do_not_fill_the_memory(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "tp:0", [0])
    fill(tracer, comm, 1, 10_000)
    assert len(comm.templates) <= 4096
    check_log(read(tracer.path).logs["k"], 10_000 - SMALL, 9999)


def test_two_tracers_in_one_process_have_a_ring_each(rings: Path) -> None:
    one, other = Tracer(rings, rank=0, world_size=2), Tracer(rings, rank=1, world_size=2)
    fill(one, one.communicator("k"), 1, 4)
    fill(other, other.communicator("k"), 1, 6)
    one.close()
    other.close()
    run = open_run(rings)
    assert [rank.logs["k"].calls for rank in run.ranks] == [3, 5]
    assert one.closed


# --- the environment ------------------------------------------------------------------------

SESSION = """
import json, sys
from ncclscope.tracing import session
tracer = session.current()
again = session.current()
assert again is tracer
print(json.dumps([session.enabled(), session.directory(), tracer and tracer.path,
                  tracer and [tracer.rank, tracer.world_size, tracer.ring.capacity]]))
"""


def session(**variables: Any) -> tuple[list[Any], str]:
    import json

    completed = run_program(SESSION, **variables)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout), completed.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"NCCLSCOPE_DIR": ""},
        {"NCCLSCOPE_DIR": "/somewhere", "NCCLSCOPE": "0"},
        {"NCCL_SCOPE_DIR": "/somewhere", "NCCLSCOPE": "0"},
    ],
)
def test_without_a_directory_nothing_is_traced(variables: dict[str, str]) -> None:
    assert session(**variables) == ([False, None, None, None], "")


@pytest.mark.parametrize("name", ["NCCLSCOPE_DIR", "NCCL_SCOPE_DIR"])
def test_a_directory_turns_tracing_on(rings: Path, name: str) -> None:
    (enabled, directory, path, numbers), output = session(**{name: rings, "NCCLSCOPE": "1"})
    assert (enabled, directory, output) == (True, str(rings), "")
    assert Path(path).parent == rings
    assert numbers == [-1, 0, layout.DEFAULT_CAPACITY]


@pytest.mark.parametrize(
    ("variables", "numbers"),
    [
        ({"RANK": 3, "WORLD_SIZE": 8}, [3, 8]),
        ({"SLURM_PROCID": 2, "SLURM_NTASKS": 4}, [2, 4]),
        ({"RANK": "x", "WORLD_SIZE": 8, "SLURM_PROCID": 2, "SLURM_NTASKS": 4}, [2, 4]),
        ({"RANK": 3}, [-1, 0]),
        ({"RANK": "", "WORLD_SIZE": ""}, [-1, 0]),
    ],
)
def test_the_launcher_says_which_rank_it_is(
    rings: Path, variables: dict[str, Any], numbers: list[int]
) -> None:
    (_, _, _, found), _ = session(NCCLSCOPE_DIR=rings, **variables)
    assert found[:2] == numbers


@pytest.mark.parametrize(
    ("records", "capacity", "complains"),
    [
        ("2000", 2000, False),
        ("5", layout.MIN_CAPACITY, False),
        ("-5", layout.MIN_CAPACITY, False),
        ("many", layout.DEFAULT_CAPACITY, True),
        ("1e4", layout.DEFAULT_CAPACITY, True),
        ("", layout.DEFAULT_CAPACITY, False),
    ],
)
def test_the_number_of_records_can_be_chosen(
    rings: Path, records: str, capacity: int, complains: bool
) -> None:
    (_, _, _, found), output = session(NCCLSCOPE_DIR=rings, NCCLSCOPE_RECORDS=records)
    assert found[2] == capacity
    assert output.count("\n") == int(complains)
    assert (records in output) or not complains


def test_the_programs_own_log_gets_the_warning(tmp_path: Path) -> None:
    source = """
import logging, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no place takes a file
logging.basicConfig(format="LOG %(levelname)s %(name)s %(message)s")
from ncclscope.tracing import session
for _ in range(3):
    assert session.current() is None
"""
    completed = run_program(source, NCCLSCOPE_DIR=tmp_path / "rings", TMPDIR=tmp_path)
    assert completed.returncode == 0, completed.stderr
    (line,) = completed.stderr.splitlines()
    assert line.startswith("LOG WARNING ncclscope tracing is off in this process: no ring can be")


def test_start_ticks_distinguish_processes() -> None:
    assert procfs.start_ticks(os.getpid()) > procfs.start_ticks(1) >= 0
    for pid in (0, -1, 1 << 40):
        assert procfs.start_ticks(pid) == 0


def test_splits_are_kept_both_ways(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("KEY", "ep:0", [0, 1], "nccl")
    tracer.record(comm, "all_to_all", shape=(3, 2), sizes=[1, 2], out_sizes=[4, 0])
    tracer.record(comm, "all_to_all", shape=(3, 2), sizes=[1, 2], out_sizes=[4, 1])
    tracer.record(comm, "all_to_all", shape=(3, 2), sizes=[1, 2])
    tracer.record(comm, "all_to_all", shape=(3, 2), sizes=[1, 2], out_sizes=[4, 0, 7])

    calls = read(tracer.path).logs["KEY"].span(1, 5)

    assert [call.sizes for call in calls] == [(1, 2)] * 4
    assert [call.out_sizes for call in calls] == [(4, 0), (4, 1), None, None]
