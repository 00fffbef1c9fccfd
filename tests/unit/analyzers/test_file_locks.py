"""File locks: who holds those for which ranks wait, and in whom chains of them end."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.attach.host.locks import holders_of, with_locks
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.readers.bundle import read_snapshot
from tests.support.cluster import Cluster
from tests.support.snapshots import in_collective, judged, snapshot, stack, worker

ClusterOf = Callable[[int], Cluster]
Locks = Mapping[int, tuple[int, ...]]
LISTED = b"""\
1: POSIX  ADVISORY  WRITE 900000501 fe:00:17 0 EOF
2: FLOCK  ADVISORY  WRITE 900000100 00:1b:51 0 EOF
2: -> FLOCK  ADVISORY  WRITE 900000101 00:1b:51 0 EOF
2:  -> FLOCK  ADVISORY  READ  900000102 00:1b:51 0 EOF
3: OFDLCK ADVISORY  READ -1 00:06:52 0 0
3: -> OFDLCK ADVISORY  WRITE 900000103 00:06:52 0 0
4: LEASE  ACTIVE    READ  900000100 00:06:53 0 EOF
garbage
5: -> POSIX  ADVISORY  WRITE 900000101 00:06:54 0 EOF
"""
AT_LOCK = stack("train.py:1 <module>", "train.py:24 rewrite")


def test_waiters_are_listed_below_the_holder(tmp_path: Path) -> None:
    (tmp_path / "locks").write_bytes(LISTED)
    ranks = {900000100 + rank: rank for rank in range(4)}

    assert holders_of(ranks, tmp_path / "locks") == {1: (-1, 0), 2: (0,), 3: (-1,)}
    assert holders_of(ranks, tmp_path / "missing") == {}


def test_the_kernel_lists_a_lock_of_this_process(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = os.fork()
        if not child:
            with (tmp_path / "file").open("w") as other:
                fcntl.flock(other, fcntl.LOCK_EX)
            os._exit(0)
        ranks = {os.getpid(): 0, child: 1}
        deadline = time.monotonic() + 60.0
        while not (found := holders_of(ranks)) and time.monotonic() < deadline:
            os.sched_yield()
        fcntl.flock(file, fcntl.LOCK_UN)
        os.waitpid(child, 0)

    assert found == {1: (0,)}


def test_what_a_rank_has_started_waits_for_it(tmp_path: Path) -> None:
    """The kernel lists this process, which a rank has started."""
    listed = LISTED.replace(b"900000101", str(os.getpid()).encode())
    (tmp_path / "locks").write_bytes(listed)

    assert holders_of({900000100: 0, os.getppid(): 1}, tmp_path / "locks") == {1: (-1, 0)}


def test_only_living_processes_of_this_host_are_looked_up(
    cluster_of: ClusterOf, tmp_path: Path
) -> None:
    (tmp_path / "locks").write_bytes(LISTED)
    run = cluster_of(2).run()
    ranks = [replace(one, pid=900000100 + one.rank, alive=True) for one in run.ranks]
    dead = [replace(one, alive=False) for one in ranks]

    assert with_locks(replace(run, ranks=tuple(ranks)), tmp_path / "locks").locks == {1: (-1, 0)}
    assert with_locks(replace(run, ranks=tuple(dead)), tmp_path / "locks").locks == {}


# --- recorded ----------------------------------------------------------------------------------


def waiting(cluster: Cluster, inside: tuple[int, ...], locks: Locks) -> Verdict:
    """Return the verdict where some ranks wait in a call, and others for file locks."""
    cluster.history()
    cluster.post(inside, "tp:0", done=False)
    return diagnose(replace(cluster.run(), locks=locks))


def named(verdict: Verdict) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    cause = verdict.cause
    assert cause is not None
    return cause.kind, cause.diverging_ranks, cause.candidate_ranks


@pytest.mark.parametrize("inside", [(0,), (0, 2), (0, 2, 4)])
def test_ranks_that_hold_each_others_locks_are_candidates_alone(
    cluster_of: ClusterOf, inside: tuple[int, ...]
) -> None:
    """Whether few, as many or more ranks wait in the call: they cannot come."""
    verdict = waiting(cluster_of(2 + len(inside) + (len(inside) == 1)), inside, {1: (3,), 3: (1,)})

    assert verdict.status == "hung"
    assert named(verdict)[1] == ()
    assert {1, 3} <= {*named(verdict)[2]} <= {1, 2, 3}
    assert "rank 1 waits for a file lock that rank 3 holds" in verdict.summary


def test_the_holder_is_named_in_place_of_those_that_wait_for_it(cluster_of: ClusterOf) -> None:
    verdict = waiting(cluster_of(6), (0, 2, 4, 5), {1: (3,)})

    assert named(verdict) == ("not_joined", (3,), ())
    assert verdict.summary.startswith("Rank 1 waits for a file lock that rank 3 holds.")


def test_who_waits_for_a_lock_of_its_own_is_named(cluster_of: ClusterOf) -> None:
    """A process that it started has inherited the lock."""
    verdict = waiting(cluster_of(4), (0, 2, 3), {1: (1,)})

    assert named(verdict) == ("not_joined", (1,), ())
    assert verdict.summary.startswith("Rank 1 waits for a file lock of its own")


def test_one_that_waits_for_its_peers_with_their_lock_is_a_candidate(
    cluster_of: ClusterOf,
) -> None:
    verdict = waiting(cluster_of(4), (0, 2, 3), {1: (3,)})

    assert named(verdict) == ("not_joined", (), (1, 3))
    assert "rank 3 waits for rank 1 in its call" in verdict.summary


@pytest.mark.parametrize("locks", [{}, {1: (-1,)}, {1: (-1, 3)}, {1: (77,)}])
def test_a_lock_that_another_process_holds_changes_nothing(
    cluster_of: ClusterOf, locks: Locks
) -> None:
    assert named(waiting(cluster_of(4), (0, 2, 3), locks)) == ("not_joined", (1,), ())


@pytest.mark.parametrize(
    ("inside", "ranks"),
    [
        pytest.param({0: ("recv", 1)}, ((2,), ()), id="a receive from the rank at the lock"),
        pytest.param({0: ("recv", 1), 2: ("recv", 0)}, ((), (0, 1, 2)), id="whose holder receives"),
        pytest.param(
            {0: ("all_reduce", None), 3: ("all_reduce", None), 2: ("recv", 3)},
            ((), (2, 3)),
            id="the holder receives from one that waits for both in a collective",
        ),
    ],
)
def test_chains_pass_from_transfers_to_locks_and_back(
    cluster_of: ClusterOf,
    inside: Mapping[int, tuple[str, int | None]],
    ranks: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    cluster = cluster_of(4)
    cluster.history()
    for rank, (op, peer) in inside.items():
        cluster.post([rank], "tp:0", op, peer=peer, done=False)

    verdict = diagnose(replace(cluster.run(), locks={1: (2,)}))

    assert verdict.status == "hung"
    assert named(verdict) == ("not_joined", *ranks)
    assert "ank 1 waits for a file lock that rank 2 holds" in verdict.summary


# --- seen --------------------------------------------------------------------------------------


def seen(inside: int, *locks: tuple[int, ...]) -> Verdict:
    """Return the verdict on untraced ranks in a call, and on further ones at locks."""
    places = [in_collective("all_reduce", 5)] * inside
    return judged(
        *(worker(rank, place) for rank, place in enumerate(places)),
        *(worker(inside + n, AT_LOCK, locked_by=by) for n, by in enumerate(locks)),
        gap=12.0,
    )


def test_without_records_locks_are_followed_as_well() -> None:
    assert named(seen(2, (3,), (2,))) == ("not_joined", (), (2, 3))
    assert named(seen(3, (4,), (3,))) == ("not_joined", (), (3, 4))
    assert named(seen(3, (4,), ())) == ("not_joined", (4,), ())
    assert named(seen(3, (0,))) == ("not_joined", (), (0, 3))
    assert named(seen(3, (-1,))) == ("not_joined", (3,), ())


def test_a_bundle_keeps_who_holds_the_locks(tmp_path: Path) -> None:
    document = snapshot([worker(0, AT_LOCK, locked_by=(-1, 3))]).to_dict()
    document["workers"][0]["locked_by"] += ("x",)
    (tmp_path / "attach.json").write_text(json.dumps(document))

    assert read_snapshot(tmp_path / "attach.json").workers[0].locked_by == (-1, 3, -1)


def test_who_holds_a_lock_and_meets_the_others_there_is_named() -> None:
    inside = worker(0, in_collective("init_process_group", 7))
    at_locks = [worker(rank, AT_LOCK, locked_by=(0,)) for rank in (1, 2)]

    verdict = judged(inside, *at_locks, gap=12.0)

    assert verdict.status == "hung"
    assert verdict.diverging_ranks == {0}
    assert "rank 2 waits for a file lock that rank 0 holds" in verdict.summary


def test_locks_of_a_bundle_are_not_looked_up_again(cluster_of: ClusterOf, tmp_path: Path) -> None:
    (tmp_path / "locks").write_bytes(LISTED)
    run = cluster_of(2).run()
    ranks = tuple(replace(one, pid=900000100 + one.rank, alive=True) for one in run.ranks)
    bundle = replace(run, ranks=ranks, snapshot=snapshot([]), locks={0: (1,)})

    assert with_locks(bundle, tmp_path / "locks").locks == {0: (1,)}
