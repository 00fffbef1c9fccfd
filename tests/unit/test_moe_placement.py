"""Who has which expert and which rows, and what a dispatcher refuses; all in one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from ncclscope.errors import DispatchError, UsageError
from ncclscope_patches.moe_dispatch import (
    STRATEGIES,
    ExpertGroups,
    ExpertPlacement,
    LocalExperts,
    MoEDispatcher,
    RowGroup,
    sequence_chunk,
)

ALONE = RowGroup()
GROUPS = ExpertGroups(ALONE, ALONE, ALONE, ALONE, sequence_parallel=True)


@given(st.integers(1, 40), st.integers(0, 40))
def test_each_expert_has_one_owner_and_each_rank_an_expert(ranks: int, more: int) -> None:
    placement = ExpertPlacement(ranks + more, ranks)

    owned = [placement.owned(rank) for rank in range(ranks)]

    assert [expert for own in owned for expert in own] == list(range(placement.experts))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    for rank, own in enumerate(owned):
        assert own
        assert {placement.owner(expert) for expert in own} == {rank}


@given(st.integers(0, 50), st.integers(1, 9))
def test_chunks_of_a_sequence_are_all_of_it(rows: int, tp: int) -> None:
    everything = list(range(rows))

    chunks = [everything[sequence_chunk(rows, tp, rank)] for rank in range(tp)]

    assert [row for chunk in chunks for row in chunk] == everything
    assert max(map(len, chunks)) == -(-rows // tp)


@pytest.mark.parametrize(("experts", "ranks"), [(3, 4), (0, 1), (4, 0)])
def test_a_rank_without_an_expert_is_refused(experts: int, ranks: int) -> None:
    with pytest.raises(UsageError, match="at least one"):
        ExpertPlacement(experts, ranks)


def test_a_dispatcher_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="choose one of always, sentinel, data_dependent"):
        MoEDispatcher(GROUPS, ExpertPlacement(4, 1), strategy="sometimes")
    with pytest.raises(UsageError, match="placed on 2 ranks, of 1"):
        MoEDispatcher(GROUPS, ExpertPlacement(4, 2))


@pytest.mark.parametrize("verify", [True, False])
def test_wrong_arguments_are_reported_also_without_a_comparison(verify: bool) -> None:
    dispatcher = MoEDispatcher(GROUPS, ExpertPlacement(4, 1), verify=verify)
    hidden, weights, ids = torch.ones(2, 3), torch.ones(2, 1), torch.zeros(2, 1)

    with pytest.raises(DispatchError, match=r"\[2, 3\] where it has 1 rows"):
        dispatcher.dispatch(hidden, weights, ids, [1])
    with pytest.raises(DispatchError, match="2 sizes for 1 ranks"):
        dispatcher.dispatch(hidden, weights, ids, [2, 2])
    with pytest.raises(DispatchError, match="a size below 0"):
        dispatcher.dispatch(hidden, weights, ids, [-2])
    with pytest.raises(DispatchError, match=r"top-k \[2\] with weights \[2, 1\]"):
        dispatcher.dispatch(hidden, weights, ids[:, 0], [2])


@pytest.mark.parametrize("strategy", ["always", "sentinel", "data_dependent"])
def test_a_single_rank_posts_nothing_and_leaves_its_inputs_alone(strategy: str) -> None:
    dispatcher = MoEDispatcher(GROUPS, ExpertPlacement(4, 1), strategy=strategy)
    hidden = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    ids, weights = torch.tensor([[0, 3], [2, -1]]), torch.tensor([[0.5, 2.0], [1.0, 7.0]])
    shared = torch.ones(2, 2)
    experts = LocalExperts(dispatcher.owned, lambda expert, rows, extra: rows * (expert + 1))

    sizes = dispatcher.agree(2)
    result = dispatcher.apply(hidden, weights, ids, sizes, experts, shared=shared)

    assert sizes == (2,)
    assert result.tolist() == [[9.5, 18.0], [10.0, 13.0]]
    assert hidden.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert shared.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_the_page_names_every_strategy() -> None:
    page = Path(__file__).parents[2] / "docs" / "moe-dispatch.md"

    rows = re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert rows == list(STRATEGIES)
