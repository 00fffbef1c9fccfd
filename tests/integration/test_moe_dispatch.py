"""The dispatcher on four real ranks, next to the same layer computed in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from ncclscope.errors import DispatchError
from ncclscope.parity.routing import RoutingPattern, routing_patterns
from ncclscope_patches.moe_dispatch import ExpertPlacement, MoEDispatcher
from tests.moe import pool
from tests.moe.case import LAYOUTS, RANKS, Case, Layout, check_results
from tests.moe.pool import Ranks, groups_of, layer_on_rank
from tests.moe.reference import EXPERTS, HIDDEN
from tests.support.examples import examples

FIXED = ["always", "sentinel"]
"""The strategies in which ranks never diverge."""
EMPTY: tuple[tuple[int, ...], ...] = ((),) * RANKS
BUSY = ((0, 2), (4, 6, 1), (3,), (5, 7, 0, 2))
"""Every rank's experts have something to do."""

many = settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with pool.started(tmp_path_factory.mktemp("moe")) as processes:
        yield processes


def compare(ranks: Ranks, case: Case) -> list[bool]:
    """Run a case and compare it; return which ranks posted the whole sequence."""
    answers = ranks.run(layer_on_rank, case)
    for answer in answers:
        assert not isinstance(answer, Exception), answer
    check_results(case, [rows for rows, _ in answers])
    return [full for _, full in answers]


@many
@given(
    pattern=routing_patterns(ranks=RANKS, experts=EXPERTS, max_tokens=5),
    layout=st.sampled_from(LAYOUTS),
    strategy=st.sampled_from(FIXED),
    flags=st.tuples(*[st.booleans()] * 5),
    seed=st.integers(0, 99),
)
def test_any_routing_gives_what_a_dense_layer_gives(
    ranks: Ranks,
    pattern: RoutingPattern,
    layout: Layout,
    strategy: str,
    flags: tuple[bool, ...],
    seed: int,
) -> None:
    assert all(compare(ranks, Case(layout, strategy, pattern.routed, *flags[:4], seed, flags[4])))


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("strategy", FIXED)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "routed",
    [
        EMPTY,
        ((), (3,), (), ()),
        ((5,) * 3, (5,), (5,) * 2, (5,) * 4),
        ((), (), (), (0, 1, 2, 3, 4, 5, 6, 7)),
        BUSY,
    ],
    ids=["no token", "one token", "one expert", "one holder", "busy"],
)
def test_what_dispatchers_get_wrong(
    ranks: Ranks,
    routed: tuple[tuple[int, ...], ...],
    layout: Layout,
    strategy: str,
    bfloat16: bool,
) -> None:
    assert all(compare(ranks, Case(layout, strategy, routed, True, bfloat16, True, True)))


@settings(many, max_examples=examples(40))
@given(
    pattern=routing_patterns(ranks=RANKS, experts=EXPERTS, max_tokens=5),
    layout=st.sampled_from(LAYOUTS),
)
@example(pattern=RoutingPattern("busy", EXPERTS, BUSY), layout=Layout(2))
@example(pattern=RoutingPattern("empty", EXPERTS, EMPTY), layout=Layout(2))
def test_the_buggy_reference_is_right_until_ranks_diverge(
    ranks: Ranks, pattern: RoutingPattern, layout: Layout
) -> None:
    case = Case(layout, "data_dependent", pattern.routed)
    if pattern.tokens and not all(case.loads):
        # One token for each rank's experts, so that all of them have some.
        first = tuple(range(0, EXPERTS, EXPERTS // RANKS))
        case = replace(case, routed=(first + pattern.routed[0], *pattern.routed[1:]))
    assert compare(ranks, case) == [bool(pattern.tokens)] * RANKS


@pytest.mark.parametrize(
    ("strategy", "rows", "weighed"),
    # Padded to two rows for each of four ranks; one row more than the rank has.
    [("always", 8, 3), ("sentinel", 3 + RANKS, 3 + RANKS), ("data_dependent", 3, 3)],
)
def test_what_travels(ranks: Ranks, strategy: str, rows: int, weighed: int) -> None:
    assert ranks.run(rows_sent, strategy) == [(rows, weighed)] * RANKS


def rows_sent(rank: int, strategy: str) -> tuple[int, int]:
    """Return the rows that arrive and those of them that are for an expert."""
    own = (2, 1, 0, 0)[rank]
    dispatcher = MoEDispatcher(
        groups_of(Layout(1)), ExpertPlacement(EXPERTS, RANKS), strategy=strategy
    )
    # Each token goes to an expert of every rank, so the buggy reference does not diverge.
    ids = torch.tensor([[0, 2, 4, 6]] * own, dtype=torch.int64).reshape(own, RANKS)
    sent = dispatcher.dispatch(
        torch.ones(own, HIDDEN), torch.ones(own, RANKS), ids, dispatcher.agree(own)
    )
    return sent.rows, int((sent.ids >= 0).any(1).sum())


def test_uneven_experts(ranks: Ranks) -> None:
    assert ranks.run(owned_of_ten) == [range(3), range(3, 6), range(6, 8), range(8, 10)]


def owned_of_ten(rank: int) -> range:
    return MoEDispatcher(groups_of(Layout(1)), ExpertPlacement(10, RANKS)).owned


# --- what ranks do not agree on -------------------------------------------------------------


def dispatch_with(
    rank: int,
    layout: Layout,
    odd: int,
    *,
    sizes: tuple[int, ...] = (),
    rows: int = 2,
    k: int = 1,
    strategy: str = "always",
    extra: int = 0,
    dtype: torch.dtype = torch.float32,
) -> object:
    """Dispatch two rows on each rank, on the diverging one in another way."""
    groups = groups_of(layout)
    agreed = (2,) * groups.dispatch.size
    if rank != odd:
        sizes, rows, k, strategy, extra, dtype = agreed, 2, 1, "always", 0, torch.float32
    dispatcher = MoEDispatcher(groups, ExpertPlacement(EXPERTS, RANKS), strategy=strategy)
    return dispatcher.dispatch(
        torch.ones(rows, HIDDEN, dtype=dtype),
        torch.ones(rows, k),
        torch.zeros(rows, k, dtype=torch.int64),
        sizes or agreed,
        [torch.ones(rows)] * extra,
    ).rows


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"strategy": "sentinel"}, "sentinel, 8 experts"),
        ({"rows": 3}, "([3, 16] where it has 2 rows)"),
        ({"k": 2}, "[2] float32 [2] int64"),
        ({"extra": 1}, "[1] int64 [] float32"),
        ({"dtype": torch.bfloat16}, "[16] bfloat16"),
        ({"sizes": (2, 2, 2, 2, 2)}, "(5 sizes for"),
    ],
    ids=str,
)
def test_a_rank_that_is_about_to_do_something_else_stops_all(
    ranks: Ranks, layout: Layout, other: dict[str, object], message: str
) -> None:
    answers = ranks.run(_dispatch_with, layout, 2, other)

    for error in answers:
        assert isinstance(error, DispatchError)
        assert str(error) == str(answers[0])
    # Both of the things, with who was about to do them.
    assert "ranks 0 1 3: always, 8 experts" in str(answers[0])
    assert message in str(answers[0]).partition("rank 2: ")[2]
    # The ranks are at the same call of every group, and can go on.
    expected = groups_of_size(layout) * 2
    assert ranks.run(_dispatch_with, layout, 2, {}) == [expected] * RANKS


def _dispatch_with(rank: int, layout: Layout, odd: int, other: dict[str, object]) -> object:
    return dispatch_with(rank, layout, odd, **other)


def groups_of_size(layout: Layout) -> int:
    """Members of a layout's dispatch group."""
    return RANKS if layout.sequence_parallel else layout.replicas


@pytest.mark.parametrize("strategy", [*FIXED, "data_dependent"])
def test_sizes_that_are_stale_on_one_rank_stop_all(ranks: Ranks, strategy: str) -> None:
    answers = ranks.run(dispatch_stale, strategy)

    for error in answers:
        assert isinstance(error, DispatchError)
        assert "sizes 1 2 3 1," in str(error)
        assert "rank 1: " in str(error)
        assert "sizes 1 2 3 9," in str(error)
        assert error.plans.keys() == set(range(RANKS))


def dispatch_stale(rank: int, strategy: str) -> None:
    """Dispatch; rank 1 believes in a size of another rank that is no longer true."""
    rows = (1, 2, 3, 1)[rank]
    dispatcher = MoEDispatcher(
        groups_of(Layout(1)), ExpertPlacement(EXPERTS, RANKS), strategy=strategy
    )
    sizes = (1, 2, 3, 9 if rank == 1 else 1)
    ids = torch.zeros(rows, 1, dtype=torch.int64)
    dispatcher.dispatch(torch.ones(rows, HIDDEN), torch.ones(rows, 1), ids, sizes)


@pytest.mark.parametrize(
    ("rows", "verify", "message"),
    [
        ((2, 3, 1, 1), True, "ranks 0 1 of one replica have [2, 3] rows"),
        ((2, 2, -1, 1), True, "(-1 rows)"),
        ((2, 2, 1, 1), False, "rank 3: "),
    ],
)
def test_ranks_that_cannot_work_together_find_out_at_once(
    ranks: Ranks, rows: tuple[int, ...], verify: bool, message: str
) -> None:
    answers = ranks.run(agree_on, rows, verify)

    assert len({str(error) for error in answers}) == 1
    assert all(isinstance(error, DispatchError) and message in str(error) for error in answers)
    assert ranks.run(agree_on, (2, 2, 0, 0), True) == [(2, 0)] * RANKS


def agree_on(rank: int, rows: tuple[int, ...], verify: bool) -> tuple[int, ...]:
    """Agree on rows; rank 3 alone leaves out the comparison where that is asked for."""
    dispatcher = MoEDispatcher(
        groups_of(Layout(2)), ExpertPlacement(EXPERTS, RANKS), verify=verify or rank != 3
    )
    return dispatcher.agree(rows[rank])
