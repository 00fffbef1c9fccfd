"""Files of several nodes, copied one after the other: what is known of their processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope import Tracer, diagnose, open_run
from ncclscope.clock import now_ns
from ncclscope.engine.processes.evidence import absent_ranks
from ncclscope.model.snapshot import (
    GpuSample,
    ProcessSample,
    RasAnswer,
    Snapshot,
    Stacks,
    Thread,
    Worker,
)
from ncclscope.readers.bundle import read_snapshot
from ncclscope.readers.nodes import describe_ring
from ncclscope.readers.snapshots import join_snapshots
from ncclscope.ring import layout
from tests.support.rings import put_word

SECOND = 1_000_000_000


def copied(
    directory: Path, rank: int, host: str, *, calls: int, at: int, pid: int | None = None
) -> Path:
    """Return a ring whose last heartbeat was at this time, when it was copied."""
    tracer = Tracer(
        directory / host,
        rank=rank,
        world_size=4,
        capacity=layout.MIN_CAPACITY,
        heartbeat=False,
        details={"host": host, "pid": pid or 10 + rank, "boot_id": "elsewhere"},
    )
    comm = tracer.communicator("K", "tp:0", range(4), "nccl")
    for _ in range(calls):
        tracer.record(comm, "all_reduce", shape=(4,), dtype="float32", redop="sum")
    path = Path(tracer.path)
    tracer.close()
    put_word(path, layout.HEADER_HEARTBEAT, at)
    put_word(path, layout.HEADER_EXITED, 0)
    return path


def describe(directory: Path, host: str, **about: object) -> None:
    rings = {path.name: about for path in (directory / host).glob("*.ring")}
    document = {"ncclscope_node": 1, "host": host, "time_ns": 1, "rings": rings}
    (directory / host / "node.json").write_text(json.dumps(document))


def test_a_node_that_was_copied_first_is_not_held_for_dead(tmp_path: Path) -> None:
    now = now_ns() + 60 * SECOND
    copied(tmp_path, 0, "a", calls=2, at=now)
    for rank in (1, 2, 3):
        copied(tmp_path, rank, "b", calls=3, at=now + 20 * SECOND)

    before = diagnose(open_run(tmp_path))
    assert before.cause is not None
    assert before.cause.kind == "dead_rank"  # as it seems, of rings that say no more

    for host in "ab":
        describe(tmp_path, host, alive=True, beats=True)
    after = diagnose(open_run(tmp_path))
    assert after.cause is not None
    assert after.cause.kind == "not_joined"
    assert after.cause.diverging_ranks == (0,)
    assert all(rank.alive for rank in open_run(tmp_path).ranks)


def test_a_job_that_runs_is_not_held_for_hung_because_it_went_on(tmp_path: Path) -> None:
    """Its second node was copied ten seconds and hundreds of calls after the first."""
    now = now_ns()
    for rank in (0, 1):
        copied(tmp_path, rank, "a", calls=2, at=now)
    for rank in (2, 3):
        copied(tmp_path, rank, "b", calls=500, at=now + 10 * SECOND)
    for host in "ab":
        describe(tmp_path, host, alive=True, beats=True)
    verdict = diagnose(open_run(tmp_path))
    assert (verdict.status, verdict.cause) == ("unknown", None)


def test_what_a_node_says_counts_and_not_what_is_here(tmp_path: Path) -> None:
    """Its pid may be another process's on the machine where it is read."""
    tracer = Tracer(tmp_path / "a", rank=0, world_size=1, heartbeat=False)
    tracer.record(tracer.communicator("K", "tp:0", [0]), "barrier")
    assert describe_ring(Path(tracer.path)) == {"alive": True, "beats": True}
    assert open_run(tmp_path).ranks[0].alive is True
    describe(tmp_path, "a", alive=False, beats=False)
    assert open_run(tmp_path).ranks[0].alive is False
    (tmp_path / "a" / "node.json").write_text('{"ncclscope_node": 1, "rings": []}')
    assert open_run(tmp_path).ranks[0].alive is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ncclscope_node": 2}', '{"rings": {}}'])
def test_what_is_no_description_is_none(tmp_path: Path, text: str) -> None:
    tracer = Tracer(tmp_path / "a", rank=0, world_size=1, heartbeat=False)
    tracer.record(tracer.communicator("K", "tp:0", [0]), "barrier")
    (tmp_path / "a" / "node.json").write_text(text)
    assert open_run(tmp_path).ranks[0].alive is True


def worker(rank: int, pid: int) -> Worker:
    samples = (ProcessSample(state="S"),) * 2
    return Worker(pid, rank, "ring", 4, samples=samples, stacks=(Stacks((Thread("t", pid),)),) * 2)


def snapshot(host: str, *workers: Worker, at: int = 10**18) -> Snapshot:
    gpus = ((GpuSample(0, pids=(1,)),),) * 2
    return Snapshot(host, at, 2.0, workers, ras=RasAnswer("OK"), gpus=gpus, notes=("said",))


def test_captures_of_hosts_are_one(tmp_path: Path) -> None:
    run = open_run(copied(tmp_path, 0, "a", calls=1, at=1))
    one = snapshot("a", worker(0, 10), worker(1, 11))
    other = snapshot("b", worker(2, 10), worker(3, 11))
    both = join_snapshots([one, other], run)
    assert [(w.rank, w.host, w.pid) for w in both.workers] == [
        *((0, "a", 10), (1, "a", 11)),
        *((2, "b", 10), (3, "b", 11)),
    ]
    assert (both.hosts, both.host) == (("a", "b"), "a, b")
    # A pid or a device of one host would be taken for another's.
    assert (both.ras, both.gpus) == (None, ())
    assert both.notes == ("a: said", "b: said")
    path = tmp_path / "attach.json"
    path.write_text(json.dumps(both.to_dict()))
    assert read_snapshot(path).workers == both.workers
    assert read_snapshot(path).hosts == both.hosts


def test_of_one_host_the_newest_counts(tmp_path: Path) -> None:
    run = open_run(copied(tmp_path, 0, "a", calls=1, at=1))
    old, new = snapshot("a", worker(0, 10)), snapshot("a", worker(1, 11), at=2 * 10**18)
    assert join_snapshots([new, old], run) is new
    long_ago = snapshot("b", worker(2, 10))
    assert join_snapshots([long_ago, new], run) is new


def test_nodes_whose_hosts_have_the_same_name_are_kept_apart(tmp_path: Path) -> None:
    """As containers and machines that were cloned have; the pid of one is nobody on the other."""
    for rank, node in enumerate("ab"):
        (tmp_path / node / "files").mkdir(parents=True)
        folder = tmp_path / node / "files"
        ring = copied(folder, rank, "same", calls=3 - rank, at=now_ns(), pid=10)
        rings = {f"files/same/{ring.name}": {"alive": True, "beats": True}}
        document = {"ncclscope_node": 1, "host": "same", "rings": rings}
        (tmp_path / node / "node.json").write_text(json.dumps(document))
        seen = snapshot("same", worker(rank, 10), at=10**18 + rank)
        (tmp_path / node / "attach.json").write_text(json.dumps(seen.to_dict()))

    run = open_run(tmp_path)

    assert [(rank.rank, rank.alive) for rank in run.ranks] == [(0, True), (1, True)]
    assert run.snapshot is not None
    assert [(one.rank, one.pid) for one in run.snapshot.workers] == [(0, 10), (1, 10)]


def test_a_process_that_lived_when_it_was_copied_has_not_gone_for_being_out_of_sight(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        copied(tmp_path, rank, "a", calls=3 - rank, at=now_ns())
    describe(tmp_path, "a", alive=True, beats=True)
    (tmp_path / "a" / "attach.json").write_text(json.dumps(snapshot("a", worker(0, 10)).to_dict()))

    assert [rank.alive for rank in open_run(tmp_path).ranks] == [True, True]

    describe(tmp_path, "a", alive=None, beats=True)
    assert [rank.alive for rank in open_run(tmp_path).ranks] == [True, False]


def test_a_rank_is_identified_by_its_process_where_numbers_are_shared(tmp_path: Path) -> None:
    run = open_run(copied(tmp_path, 0, "a", calls=1, at=1))
    run = replace(run, ranks=(replace(run.ranks[0], host="b", pid=10, rank=4),))
    both = join_snapshots([snapshot("a", worker(0, 10)), snapshot("b", worker(0, 10))], run)
    assert [(w.rank, w.host) for w in both.workers] == [(0, "a"), (4, "b")]
    clash = join_snapshots([snapshot("a", worker(0, 1)), snapshot("c", worker(0, 1))], run)
    assert [(w.rank, w.host) for w in clash.workers] == [(0, "a")]
    assert "left out" in clash.notes[-1]


def test_a_node_that_was_not_sampled_is_no_hole() -> None:
    one = snapshot("a", worker(0, 10), worker(3, 11))
    assert absent_ranks(one) == (1, 2)
    assert absent_ranks(replace(one, hosts=("a", "c"))) == ()


def test_rings_of_a_host_that_was_not_sampled_are_not_dead(tmp_path: Path) -> None:
    copied(tmp_path, 0, "a", calls=3, at=now_ns())
    copied(tmp_path, 1, "b", calls=3, at=now_ns())
    (tmp_path / "attach.json").write_text(json.dumps(snapshot("a", worker(0, 10)).to_dict()))
    assert [rank.alive for rank in open_run(tmp_path).ranks] == [True, None]
