"""NCCL's profiler plugin records what programs without Python call."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import ncclscope
from ncclscope.model import Call, Run
from ncclscope.model.signature import sign
from tests.support import fork_server
from tests.support.nccl_programs import MASK, MASK_OF_4, VERSIONS, Built, Program, call, comm, run

DTYPES = {
    "Int8": "int8",
    "Uint8": "uint8",
    "Int32": "int32",
    "Uint32": "uint32",
    "Int64": "int64",
    "Uint64": "uint64",
    "Float16": "float16",
    "Float32": "float32",
    "Float64": "float64",
    "Bfloat16": "bfloat16",
    "Float8e4m3": "float8_e4m3fn",
    "Float8e5m2": "float8_e5m2",
}


WAIT = "sleep 1500"
"""A wait for others, long enough for a heartbeat to show it."""


def _job(
    built: Built, rings: Path, edit: Callable[[int], Sequence[str]], *, version: int = 5
) -> None:
    """Run four ranks that are killed after the calls that `edit` returns for each."""
    programs = [Program(built, {"NCCLSCOPE_DIR": rings}) for _ in range(4)]
    for rank, program in enumerate(programs):
        program.send(f"open {built.plugin} {version}", comm(rank), *edit(rank), "kill")
    for program in programs:
        assert program.end() == (-9, "")


def _calls(run: Run, rank: int = 0) -> list[Call]:
    (log,) = run.by_rank[rank].logs.values()
    return list(log.span(1, log.calls + 1))


def _verdict(rings: Path) -> dict[str, object]:
    command = [
        sys.executable,
        "-m",
        "ncclscope",
        "diagnose",
        str(rings),
        "--json",
        "--stall-after",
        "0.5",
    ]
    done = fork_server.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1, 3), done.stderr
    verdict: dict[str, object] = json.loads(done.stdout)
    return verdict


def _step(rank: int, step: int = 0) -> list[str]:
    return [
        call("AllReduce", 1000 + step, "Bfloat16"),
        call("AllGather", 64),
        call("ReduceScatter", 64),
        "start",
        f"send 0 10 ncclInt8 {(rank + 1) % 4}",
        f"recv 0 10 ncclInt8 {(rank + 3) % 4}",
        "end",
        call("Broadcast", 7, "Int64", root=2),
        call("Reduce", 7, "Int64", root=1),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_of_the_interface_records_a_job(
    nccl: Built, rings: Path, version: int
) -> None:
    _job(nccl, rings, _step, version=version)
    run = ncclscope.open_run(rings)
    assert [rank.rank for rank in run.ranks] == [0, 1, 2, 3]
    assert [call.op for call in _calls(run)] == [
        *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
    ]
    (transfers,) = run.by_rank[1].p2p.values()
    assert [(one.op, one.peer, one.numel) for one in transfers] == [
        ("send", 2, 10),
        ("recv", 0, 10),
    ]
    verdict = _verdict(rings)
    assert verdict["status"] == "ok"
    assert verdict["coverage"]["comms"] == [  # type: ignore[index]
        {"key": "nccl:0000000000000abc", "label": "nccl", "recorded": 5, "counted": 5, "by": "nccl"}
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_mask_asks_for_calls_and_peers_only(nccl: Built, rings: Path, version: int) -> None:
    program = Program(nccl, {"NCCLSCOPE_DIR": rings})
    mask = MASK_OF_4 if version == 4 else MASK
    assert program.ask(f"open {nccl.plugin} {version}", comm(0)) == [0, mask]
    assert program.end() == (0, "")


def test_signatures_are_those_of_the_python_recorder(nccl: Built, rings: Path) -> None:
    functions = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll"]
    functions += ["Gather", "Scatter", "SomethingNew"]
    _job(
        nccl,
        rings,
        lambda rank: [
            *(call(func, 12, "Int32", root=1) for func in functions),
            *(call("AllReduce", 5, dtype) for dtype in DTYPES),
        ],
    )
    run = ncclscope.open_run(rings)
    expected = [
        sign("all_reduce", dtype="int32", numel=12),
        sign("all_gather", dtype="int32", numel=12),
        sign("reduce_scatter", dtype="int32", numel=48),
        sign("broadcast", dtype="int32", root=1, numel=12),
        sign("reduce", dtype="int32", root=1, numel=12),
        sign("all_to_all", dtype="int32", numel=48),
        sign("gather", dtype="int32", root=1, numel=12),
        sign("scatter", dtype="int32", root=1, out_shape=(12,)),
        sign("somethingnew", dtype="int32"),
        *(sign("all_reduce", dtype=dtype, numel=5) for dtype in DTYPES.values()),
    ]
    for rank in range(4):
        calls = _calls(run, rank)
        assert [one.signature for one in calls] == expected
        assert all(one.redop is one.shape is one.site is None for one in calls)
    assert [one.numel for one in _calls(run, 1)][:8] == [12, 12, 48, 12, 12, 48, 12, 48]


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("missing_call", lambda lines: [*lines[:9], *lines[10:]]),
        (
            "size_mismatch",
            lambda lines: [*lines[:9], call("AllReduce", 5, "Bfloat16"), *lines[10:]],
        ),
        ("op_mismatch", lambda lines: [*lines[:10], lines[11], lines[10], *lines[12:]]),
        ("extra_call", lambda lines: [*lines[:9], call("AllGather", 5), *lines[9:]]),
        ("dtype_mismatch", lambda lines: [*lines[:10], call("AllGather", 64, "Int32")]),
        ("root_mismatch", lambda lines: [*lines[:7], call("Broadcast", 7, "Int64", root=3)]),
        ("not_joined", lambda lines: lines[:25]),
    ],
)
def test_the_rank_that_left_the_sequence_is_named(
    nccl: Built, rings: Path, kind: str, edit: Callable[[list[str]], list[str]]
) -> None:
    def lines(rank: int) -> list[str]:
        steps = [line for step in range(3) for line in _step(rank, step)]
        steps = edit(steps) if rank == 2 else steps
        return [*steps, WAIT] if kind == "not_joined" else steps

    _job(nccl, rings, lines)
    verdict = _verdict(rings)
    assert verdict["status"] in ("diverged", "hung")
    found = verdict["verdict"]
    assert isinstance(found, dict)
    assert (found["kind"], found["diverging_ranks"]) == (kind, [2])


def test_the_calls_of_a_group_have_its_number(nccl: Built, rings: Path) -> None:
    grouped = ["start", call(count=1), call(count=2), "end"]
    _job(nccl, rings, lambda rank: [*grouped, call(count=3), *grouped])
    groups = [one.group for one in _calls(ncclscope.open_run(rings))]
    assert groups[0] == groups[1] != groups[3] == groups[4]
    assert groups[2] is None
    assert None not in (groups[0], groups[3])


def test_a_captured_call_is_marked_and_its_replays_are_reported_unseen(
    nccl: Built, rings: Path
) -> None:
    _job(nccl, rings, lambda rank: [call(), call(captured=True), call(captured=True)])
    assert [one.captured for one in _calls(ncclscope.open_run(rings))] == [False, True, True]
    verdict = _verdict(rings)
    assert verdict["status"] == "unknown"
    assert "replays of CUDA graphs are not seen" in str(verdict["coverage"])


def test_the_peer_of_a_send_that_never_connects_stays_unknown(nccl: Built, rings: Path) -> None:
    # NCCL says the peer when the group is launched.
    _job(nccl, rings, lambda rank: [call(), "start", "send 0 10 ncclInt8 1", WAIT])
    (transfers,) = ncclscope.open_run(rings).by_rank[0].p2p.values()
    assert [(one.op, one.peer) for one in transfers] == [("send", None)]
    assert _verdict(rings)["status"] != "ok"


def test_threads_record_on_their_communicators(nccl: Built, rings: Path) -> None:
    for rank in range(2):
        lines = [f"open {nccl.plugin} 5"]
        lines += [comm(rank, 2, at=at, hash=at + 1) for at in range(4)]
        run(nccl, [*lines, "threads 4 500 0"], NCCLSCOPE_DIR=rings)
    found = ncclscope.open_run(rings)
    assert all(log.calls == 500 for rank in found.ranks for log in rank.logs.values())
    assert all(len(rank.logs) == 4 and rank.exited for rank in found.ranks)
    assert _verdict(rings)["status"] == "ok"


def test_members_of_a_part_of_the_job_are_found_by_their_places(nccl: Built, rings: Path) -> None:
    # Ranks 3 and 1 are ranks 0 and 1 of a communicator.
    for rank in range(4):
        lines = [f"open {nccl.plugin} 6", comm(rank), call()]
        if rank % 2:
            lines += [comm(1 - rank // 2, 2, at=1, hash=7, name="odd"), call(at=1)]
        run(nccl, lines, NCCLSCOPE_DIR=rings, RANK=rank, WORLD_SIZE=4)
    comms = ncclscope.open_run(rings).communicators
    assert comms["nccl:0000000000000abc"].ranks == (0, 1, 2, 3)
    assert comms["nccl:0000000000000007"].ranks == (3, 1)
    assert comms["nccl:0000000000000007"].label == "odd"


def test_a_process_with_two_ranks_has_a_ring_for_each(nccl: Built, rings: Path) -> None:
    lines = [f"open {nccl.plugin} 5", comm(0, 2), comm(1, 2, at=1)]
    lines += ["start", call(), call(at=1), "end"]
    # A second communicator, made in the other order.
    lines += [comm(1, 2, at=2, hash=5), comm(0, 2, at=3, hash=5), call(at=2), call(at=3), call()]
    run(nccl, [*lines, "kill"], NCCLSCOPE_DIR=rings)
    found = ncclscope.open_run(rings)
    assert [rank.rank for rank in found.ranks] == [0, 1]
    calls = [[log.calls for log in rank.logs.values()] for rank in found.ranks]
    assert calls == [[2, 1], [1, 1]]
    assert [len(rank.logs) for rank in found.ranks] == [2, 2]


def test_a_rank_that_calls_nothing_leaves_its_communicator(nccl: Built, rings: Path) -> None:
    _job(nccl, rings, lambda rank: [WAIT] if rank == 3 else [call(), WAIT])
    verdict = _verdict(rings)
    assert verdict["ranks"] == {"expected": 4, "read": 4, "missing": []}
    found = verdict["verdict"]
    assert isinstance(found, dict)
    assert (found["kind"], found["diverging_ranks"]) == ("not_joined", [3])
