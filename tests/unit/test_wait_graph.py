"""The wait graph: what a repair of some ranks releases, and which sets of ranks explain a hang."""

from __future__ import annotations

import pytest

from ncclscope.engine.repairs.graph import Unfit, Wait, WaitGraph
from ncclscope.model import Call


def wait(
    rank: int, *awaited: int, comm: str = "world", seq: int = 7, thread: int = 0, due: int = 0
) -> Wait:
    call = Call("all_reduce", comm, seq, position=seq, thread=thread)
    threads = dict.fromkeys(awaited, frozenset({due})) if due else {}
    return Wait(rank, call, frozenset(awaited), threads)


def test_a_chain_is_released_by_the_rank_at_its_end() -> None:
    """Rank 0 waits in a collective for rank 1, which waits in a transfer for rank 2."""
    graph = WaitGraph([wait(0, 1), wait(1, 2, comm="pp")])

    assert graph.sinks == {2}
    assert graph.released(()) == frozenset()
    assert graph.released({2}) == {0, 1}
    assert sorted(map(sorted, graph.cheapest)) == [[1], [2]]
    assert graph.without_victims({1, 2}) == {2}


def test_who_waits_for_all_others_is_released_only_if_all_come() -> None:
    graph = WaitGraph([wait(0, 2, 3), wait(1, 2, 3)])

    assert graph.released({2}) == frozenset()
    assert frozenset({2, 3}) in graph.cheapest
    assert graph.without_victims({2, 3}) == {2, 3}


def test_a_cycle_has_as_many_repairs_as_ranks() -> None:
    graph = WaitGraph([wait(0, 1, comm="a"), wait(1, 0, comm="b")])

    assert graph.sinks == frozenset()
    assert sorted(map(sorted, graph.cheapest)) == [[0], [1]]


def test_ranks_of_a_chain_are_behind_the_cycle_at_its_end() -> None:
    """Rank 0 waits for 1, which waits for 2; ranks 2 and 3 wait for each other."""
    graph = WaitGraph([wait(0, 1), wait(1, 2), wait(2, 3), wait(3, 2)])

    assert graph.behind([0, 1, 2, 3]) == {0, 1, 3}
    assert graph.behind([0, 3]) == {0}


def test_a_chain_of_a_hundred_thousand_ranks_is_followed_once() -> None:
    ring = [wait(rank, (rank + 1) % 100_000) for rank in range(100_000)]

    assert len(WaitGraph(ring).behind(range(100_000))) == 99_999


def test_a_rank_that_also_waits_for_one_at_work_is_behind_nobody() -> None:
    graph = WaitGraph([wait(0, 1, 2), wait(1, 2)])

    assert graph.behind([0, 1]) == frozenset()


def test_a_call_of_two_kinds_completes_without_the_fewer() -> None:
    graph = WaitGraph([wait(rank) for rank in range(4)], [Unfit("world", 7, ((0, 1, 3), (2,)))])

    assert graph.cheapest == [frozenset({2})]
    assert graph.released({0}) == {0}


def test_the_number_of_a_transfer_is_none_of_a_collective() -> None:
    """Rank 3 waits in a transfer, and the other ranks in an earlier call that differs."""
    sent = Wait(3, Call("send", "world", 20, position=20, peer=4), frozenset({4}))
    graph = WaitGraph([wait(0), wait(1), sent], [Unfit("world", 7, ((0,), (1,)))])

    assert graph.released({4}) == {3}


def test_the_nearest_rival_may_be_like_a_diverging_rank() -> None:
    graph = WaitGraph([wait(1, 3), wait(2, 3)])

    assert graph.nearest({1, 3}) == (2, 1)


@pytest.mark.parametrize("abnormal", [(), (3,)])
def test_a_recorded_end_has_to_be_in_the_repair(abnormal: tuple[int, ...]) -> None:
    graph = WaitGraph([wait(0, 3)], abnormal=abnormal)

    assert [frozenset({3})] == [one for one in graph.cheapest if 3 in one]
    assert (frozenset({0}) in graph.cheapest) is not bool(abnormal)


def test_nothing_follows_where_only_ranks_without_a_record_are_missing() -> None:
    assert WaitGraph([wait(0, 3), wait(1, 3)], unseen=[3]).cheapest == []


def test_nothing_follows_past_a_rank_that_waits_for_something_unknown() -> None:
    assert WaitGraph([wait(0, 3), wait(1, 3)], obscure=[3]).cheapest == []


def test_the_nearest_rival_is_the_rank_that_releases_the_most() -> None:
    graph = WaitGraph([wait(0, 1), wait(1, 4, comm="pp"), wait(2, 3, comm="dp")], abnormal=[3])

    assert graph.nearest({3}) == (1, 2)


def test_a_rank_whose_other_thread_waits_may_still_be_missing() -> None:
    """Rank 1 waits in its main thread for rank 0, whose thread 2 waits for that of rank 1."""
    graph = WaitGraph(
        [
            wait(0, 1, comm="save", thread=2, due=2),
            wait(1, 0, 2, thread=1, due=1),
            wait(2, 1, comm="save", thread=2, due=2),
        ]
    )

    assert graph.partly_waiting == {0, 1, 2}
    assert graph.released(()) == frozenset()
    assert graph.cheapest == [frozenset({1})]


def test_a_wait_of_the_thread_that_is_due_holds_up_its_peers() -> None:
    graph = WaitGraph([wait(0, 1, thread=1, due=1), wait(1, 2, comm="pp", thread=1, due=1)])

    assert graph.sinks == {2}
    assert graph.released({2}) == {0, 1}


def test_a_rank_goes_on_if_both_its_threads_do() -> None:
    graph = WaitGraph([wait(0, 1, thread=1), wait(0, 2, comm="save", thread=2)])

    assert graph.released({1}) == frozenset()
    assert graph.released({1, 2}) == {0}


def test_a_thread_may_wait_for_another_one_of_its_rank() -> None:
    """Rank 1 has no main call, and its other thread waits for rank 0, which left no record."""
    graph = WaitGraph([wait(1, 0, comm="save", thread=2), wait(2, 1, thread=1, due=1)], unseen=[0])

    assert graph.sinks == {1}
    assert graph.released(()) == {1}
    assert graph.cheapest == []


def test_of_ranks_that_wait_for_nobody_none_is_the_victim_of_another() -> None:
    """The end of either of ranks 2 and 3 accounts for the lost connections of ranks 0 and 1."""
    lost = [
        Wait(rank, Call("all_reduce", "world", 7, position=7), frozenset({2, 3}), {}, True, True)
        for rank in (0, 1)
    ]
    graph = WaitGraph(lost)

    assert graph.released({2}) == graph.released({3}) == {0, 1}
    assert graph.without_victims({2, 3}) == {2, 3}
