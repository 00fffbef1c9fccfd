"""One call is one record, whoever saw it: a probe in Python, NCCL's plugin, or both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ncclscope
from ncclscope import native
from ncclscope.engine.coverage import survey
from ncclscope.model import Run
from ncclscope.model.snapshot import RasAnswer, RasComm, RasRank, Snapshot
from tests.support.nccl_programs import Built
from tests.support.programs import run_program

needs_core = pytest.mark.skipif(native.core() is None, reason="the core in C is not built")

_PROGRAM = """
    import ctypes, sys
    import ncclscope
    from ncclscope import native
    core = native.core()
    rings, library, rank = sys.argv[1], ctypes.CDLL(sys.argv[2]), int(sys.argv[3])

    def nccl(line):
        assert library.stand_in(line.encode()) >= 0, line

    def announced(comm, *lines):
        core.announce(None if comm is None else comm.channel)
        for line in lines:
            nccl(line)
        core.conclude()

    nccl(f"open {native.plugin_path()} 5")
    tracer = ncclscope.Tracer(rings, rank=rank, world_size=2)
    tp = tracer.communicator("the-key", "tp:0", [0, 1], "nccl")
    nccl(f"init 0 0xabc 1 2 {rank}")
    nccl(f"init 1 0xdef 1 4 {rank}")
"""


def _job(nccl: Built, rings: Path, program: str) -> Run:
    for rank in range(2):
        done = run_program(_PROGRAM + program, rings, nccl.library, rank, NCCLSCOPE_DIR=rings)
        assert (done.returncode, done.stderr) == (0, "")
    assert len([*rings.glob("*.ring")]) == 2
    return ncclscope.open_run(rings)


@needs_core
def test_an_announced_call_is_the_probes_record_and_is_counted(nccl: Built, rings: Path) -> None:
    run = _job(
        nccl,
        rings,
        """
    for _ in range(3):
        tracer.record(tp, "all_reduce", shape=(4, 2), dtype="float32", redop="sum")
        announced(tp, "call 0 AllReduce 8 ncclFloat32 0")
    """,
    )
    assert [*run.communicators] == ["the-key"]
    rank = run.ranks[0]
    assert (rank.logs["the-key"].calls, rank.carried) == (3, {"the-key": 3})
    assert rank.logs["the-key"].call(1).redop == "sum"
    assert run.communicators["the-key"].hash == "0xabc"
    (counted,) = survey(run).comms
    assert (counted.recorded, counted.counted, counted.by) == (3, 3, "nccl")


@needs_core
def test_what_no_probe_saw_follows_on_the_same_communicator(nccl: Built, rings: Path) -> None:
    run = _job(
        nccl,
        rings,
        """
    tracer.record(tp, "all_reduce", shape=(4, 2), dtype="float32", redop="sum")
    announced(tp, "call 0 AllReduce 8 ncclFloat32 0")
    nccl("call 0 AllGather 5 ncclFloat32 0")
    nccl("send 0 9 ncclFloat32 1")
    """,
    )
    for rank in run.ranks:
        calls = rank.logs["the-key"].span(1, 3)
        assert [(call.op, call.numel, call.redop) for call in calls] == [
            ("all_reduce", 8, "sum"),
            ("all_gather", 5, None),
        ]
        assert [call.peer for call in rank.p2p["the-key"]] == [1]
        assert rank.carried == {"the-key": 2}
    assert survey(run).complete


@needs_core
def test_the_calls_of_an_uneven_collective_are_one(nccl: Built, rings: Path) -> None:
    run = _job(
        nccl,
        rings,
        """
    parts = [f"call 0 Broadcast {size} ncclFloat32 {root}" for root, size in enumerate((3, 5))]
    tracer.record(tp, "all_gatherv", shape=(3,), dtype="float32", sizes=(3, 5))
    announced(tp, "start", *parts, "end")
    announced(None, "call 0 AllReduce 1 ncclInt8 0")
    """,
    )
    assert [rank.carried for rank in run.ranks] == [{"the-key": 1}] * 2
    assert [rank.logs["the-key"].calls for rank in run.ranks] == [1, 1]


@needs_core
def test_a_communicator_with_other_members_keeps_its_own_record(nccl: Built, rings: Path) -> None:
    # torch makes communicators of two for pairs that send and receive.
    run = _job(
        nccl,
        rings,
        """
    tracer.record(tp, "send", peer=1 - rank, shape=(1,), dtype="float32")
    announced(tp, "send 1 1 ncclFloat32 1")
    nccl("call 1 AllReduce 1 ncclFloat32 0")
    """,
    )
    assert sorted(run.communicators) == ["nccl:0000000000000def", "the-key"]
    assert run.communicators["the-key"].hash == ""


@needs_core
def test_another_thread_s_calls_are_not_announced(nccl: Built, rings: Path) -> None:
    run = _job(
        nccl,
        rings,
        """
    import threading
    core.announce(tp.channel)
    thread = threading.Thread(target=nccl, args=["call 0 AllReduce 1 ncclFloat32 0"])
    thread.start()
    thread.join()
    core.conclude()
    """,
    )
    assert run.ranks[0].logs["nccl:0000000000000abc"].calls == 1


@needs_core
def test_calls_that_nccl_carried_out_beyond_the_records_prevent_ok(
    nccl: Built, rings: Path
) -> None:
    run = _job(
        nccl,
        rings,
        """
    tracer.record(tp, "all_reduce", shape=(8,), dtype="float32")
    for _ in range(3):
        announced(tp, "call 0 AllReduce 8 ncclFloat32 0")
    """,
    )
    assert survey(run).unseen == ("tp:0 of ranks 0 1: NCCL reported 3 calls, 1 are recorded",)


@needs_core
def test_nccl_s_own_counts_are_compared_by_the_communicator_s_hash(
    nccl: Built, rings: Path
) -> None:
    run = _job(
        nccl,
        rings,
        """
    nccl("call 0 AllReduce 8 ncclFloat32 0")  # before a probe has named the communicator
    tracer.record(tp, "all_reduce", shape=(8,), dtype="float32")
    announced(tp, "call 0 AllReduce 8 ncclFloat32 0")
    """,
    )
    ranks = tuple(RasRank(rank, pid=7, counts={"AllReduce": 5 + rank}) for rank in range(2))
    ras = RasAnswer("", comms=(RasComm("0xabc", 2, ranks),))
    snapshot = Snapshot("host", 1, 1.0, (), ras=ras)
    found = [one for one in survey(replace(run, snapshot=snapshot)).comms if one.by == "ras"]
    assert [(one.recorded, one.counted) for one in found] == [(2, 6)]


@needs_core
def test_a_ring_of_the_plugin_and_a_later_tracers_are_one_process(nccl: Built, rings: Path) -> None:
    program = """
    import ctypes, sys
    import ncclscope
    from ncclscope import native
    library = ctypes.CDLL(sys.argv[2])
    library.stand_in(f"open {native.plugin_path()} 5".encode())
    library.stand_in(b"init 0 1 1 2 1")
    library.stand_in(b"call 0 AllReduce 1 ncclInt8 0")
    tracer = ncclscope.Tracer(sys.argv[1], rank=1, world_size=2)
    tracer.record(tracer.communicator("k", "tp:0", [0, 1], "nccl"), "all_reduce", shape=(1,))
    library.stand_in(b"call 0 AllReduce 1 ncclInt8 0")
    """
    done = run_program(program, rings, nccl.library, NCCLSCOPE_DIR=rings)
    assert (done.returncode, done.stderr) == (0, "")
    assert len([*rings.glob("*.ring")]) == 2
    (rank,) = ncclscope.open_run(rings).ranks
    calls = {key: log.calls for key, log in rank.logs.items()}
    assert (rank.rank, calls) == (1, {"nccl:0000000000000001": 2, "k": 1})


_ONE_PROBED = """
    def step(number, size):
        if rank == 0:
            tracer.record(tp, "all_reduce", shape=(size, 2), dtype="float32", redop="sum")
            announced(tp, f"call 0 AllReduce {2 * size} ncclFloat32 0")
            tracer.record(tp, "barrier")
            announced(tp, "call 0 AllReduce 1 ncclFloat32 0")
        else:
            nccl(f"call 0 AllReduce {2 * size} ncclFloat32 0")
            nccl("call 0 AllReduce 1 ncclFloat32 0")
        nccl(f"call 0 AllGather {number} ncclFloat32 0")
    for number in range(1, 9):
        step(number, 4)
    step(9, 4 + DIFFERENCE * rank)
"""


@needs_core
@pytest.mark.parametrize("difference", [0, 1])
def test_a_rank_without_probes_is_compared_in_what_nccl_reports(
    nccl: Built, rings: Path, difference: int
) -> None:
    run = _job(nccl, rings, _ONE_PROBED.replace("DIFFERENCE", str(difference)))
    assert [*run.communicators] == ["the-key"]
    verdict = ncclscope.diagnose(run)
    assert survey(run).complete
    if not difference:
        assert (verdict.status, verdict.findings) == ("ok", ())
    else:
        assert verdict.cause is not None
        assert (verdict.cause.kind, verdict.cause.seq) == ("size_mismatch", 25)
        assert verdict.cause.candidate_ranks == (0, 1)  # a pair
