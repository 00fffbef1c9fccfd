"""A rank that lost a connection follows from the rank whose end closed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pytest

from ncclscope.engine.case import Case
from ncclscope.engine.repairs.losses import Losses
from ncclscope.engine.verdict import diagnose
from ncclscope.engine.waits.graph import wait_graph
from ncclscope.model import Call, Rank, Run
from tests.support.cluster import Cluster
from tests.worlds.sample import sample, verdict_on

ClusterOf = Callable[[int], Cluster]

LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.9]:4242"
RAISED = "RuntimeError: loss is not finite"


def end(cluster: Cluster, errors: Mapping[int, str]) -> None:
    """Let ranks record how they ended; the others are gone without a word."""
    for rank, error in errors.items():
        cluster.tracers[rank].describe(ended_with=error)
        cluster.tracers[rank].close()


def read(cluster: Cluster) -> Run:
    """Read the records: who recorded no end was seen for a little less than the others."""
    return cluster.run(
        quiet={rank.rank: 0.5 if rank.exited else 0.1 for rank in cluster.run().ranks}
    )


def named(cluster: Cluster) -> list[tuple[int, ...]]:
    findings = diagnose(read(cluster)).findings
    return [one.diverging_ranks for one in findings if one.role == "cause"]


def pipeline(cluster: Cluster) -> None:
    """Let each rank receive from the one before it, and the first one from none."""
    cluster.history("world")
    for rank in list(cluster.everybody)[1:]:
        cluster.post([rank], "world", "recv", redop=None, peer=rank - 1, done=False)


def test_a_loss_is_put_down_to_a_recorded_failure_along_a_chain(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    pipeline(cluster)
    end(cluster, {0: RAISED, 1: LOST, 2: LOST, 3: LOST})

    losses = Case(read(cluster)).losses

    assert losses.reached({0}) == {1, 2, 3}
    assert losses.reached({2}) == {2, 3}
    assert not losses.closers
    assert named(cluster) == [(0,)]


def test_what_no_recorded_end_accounts_for_is_put_down_to_one_that_is_not_recorded(
    cluster_of: ClusterOf,
) -> None:
    """Rank 0 was killed in the call in which its peers lost the connection to it."""
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post(cluster.everybody, "world", done=False)
    end(cluster, {1: LOST, 2: LOST, 3: LOST})

    assert Case(read(cluster)).losses.closers == {0}
    assert named(cluster) == [(0,)]


def test_of_two_that_may_have_closed_a_connection_none_is_named(cluster_of: ClusterOf) -> None:
    cluster = cluster_of(4)
    cluster.history("world")
    cluster.post(cluster.everybody, "world", done=False)
    end(cluster, {2: LOST, 3: LOST})

    assert Case(read(cluster)).losses.closers == {0, 1}
    assert not any(named(cluster))


def test_who_lost_a_connection_of_a_rank_that_exited_in_order_closed_none(
    cluster_of: ClusterOf,
) -> None:
    cluster = cluster_of(3)
    cluster.history("world")
    cluster.post([0], "world", done=False)
    end(cluster, {0: LOST})
    cluster.tracers[1].close()

    assert not Case(read(cluster)).losses.origins


@pytest.mark.parametrize(
    ("seed", "number", "rank"),
    [
        (1401, 8728, 6),  # killed in a call that its peers were in, too
        (1402, 3655, 2),  # aborted by data of another size
        (1402, 7642, 4),
        (1402, 9032, 0),
        (1501, 3781, 1),  # the loss ended threads that another rank waits for
        (1501, 11650, 1),
        (1510, 1991, 6),  # others were still running as the records were taken
        (13, 472, 2),
        (1401, 5642, 0),  # all others have exited, one after a long computation
    ],
)
def test_only_the_first_failure_is_named(seed: int, number: int, rank: int) -> None:
    drawn = sample(seed, number)

    found = verdict_on(drawn.world, drawn.outcome)["findings"]

    ranks = {(*one["diverging_ranks"],) for one in found if one["role"] == "cause"}
    assert ranks == {(rank,)}


@pytest.mark.parametrize(
    ("seed", "number", "rank"),
    [
        (1401, 801, 2),  # it was killed, or the rank without a record was
        (1402, 4728, 1),  # the only peer left no record
        (1501, 800, 0),
        (1501, 4248, 0),
        (8, 112, 0),  # it posted more, and all others exited
    ],
)
def test_where_the_first_failure_is_not_recorded_it_is_a_candidate(
    seed: int, number: int, rank: int
) -> None:
    drawn = sample(seed, number)

    found = verdict_on(drawn.world, drawn.outcome)["findings"]

    (cause,) = [one for one in found if one["role"] == "cause"]
    assert not cause["diverging_ranks"]
    assert rank in cause["candidate_ranks"]


@pytest.mark.parametrize(("quiet", "ranks"), [(60.0, {(0, 1, 2)}), (0.5, set())])
def test_ranks_that_are_gone_alike_do_not_wait_for_each_other(
    cluster_of: ClusterOf, quiet: float, ranks: set[tuple[int, ...]]
) -> None:
    """Ranks 8 and 9 lost connections in a call that both had posted."""
    cluster = cluster_of(10)
    cluster.history("world")
    cluster.post([8, 9], "tp", members=[8, 9], done=False)
    cluster.post(range(3, 10), "world", done=False)
    end(cluster, dict.fromkeys(range(3, 10), LOST))

    findings = diagnose(cluster.run(quiet=quiet)).findings

    assert {one.diverging_ranks for one in findings if one.role == "cause"} == ranks
    assert not any("would go on" in one.summary for one in findings)


def test_each_rank_is_asked_a_few_times_whether_it_may_have_ended(
    cluster_of: ClusterOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of a thousand ranks took minutes, as each was asked by each."""
    asked: Counter[int] = Counter()
    open_calls = Losses._open_calls

    def counted(self: Losses, rank: Rank) -> Iterator[Call]:
        asked[rank.rank] += 1
        return open_calls(self, rank)

    monkeypatch.setattr(Losses, "_open_calls", counted)
    cluster = cluster_of(40)
    cluster.history("world")
    cluster.post(cluster.everybody, "world", done=False)
    end(cluster, dict.fromkeys(range(15, 40), LOST))

    assert Case(read(cluster)).losses.closers == {*range(15)}
    assert max(asked.values()) <= 3


@pytest.mark.parametrize(("rows", "gone"), [(6, set()), (2, {0})])
def test_gloo_ends_who_receives_more_than_expected(
    cluster_of: ClusterOf, rows: int, gone: set[int]
) -> None:
    """Rank 0 is gone as rank 2 sent more rows: it had come to the call, and waits as its peers do.

    Near miss: no process ends of fewer rows than it expects.
    """
    cluster = cluster_of(4)
    line = {"members": [0, 1, 2], "site": "train.py:9 step"}
    cluster.history("tp:0", members=[0, 1, 2])
    cluster.post([0, 1], "tp:0", shape=(4, 2), done=False, **line)
    cluster.post([2], "tp:0", shape=(rows, 2), done=False, **line)
    cluster.post([3], "dp:0", members=[0, 3], done=False)
    run = cluster.run(quiet={0: 0.0, 1: 600.0, 2: 600.0, 3: 600.0})

    assert wait_graph(Case(run)).gone == gone


@pytest.mark.parametrize(("seed", "number", "odd"), [(1801, 2574, 7), (1803, 12334, 5)])
def test_who_ended_of_another_size_is_no_second_cause(seed: int, number: int, odd: int) -> None:
    drawn = sample(seed, number, "")

    document = verdict_on(drawn.world, drawn.outcome)

    causes = [one for one in document["findings"] if one["role"] == "cause"]
    assert [one["diverging_ranks"] for one in causes] == [[odd]]
