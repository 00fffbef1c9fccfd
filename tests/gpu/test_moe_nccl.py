"""The dispatcher over NCCL on four GPUs or two, next to the same layer computed in one process."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from ncclscope.errors import DispatchError
from ncclscope.launch.processes import run_ranks
from ncclscope_patches.moe_dispatch import ExpertPlacement, MoEDispatcher
from tests.gpu.host import SEATS
from tests.moe.case import Case, Layout, check_results
from tests.moe.pool import groups_of, layer_on_rank
from tests.moe.reference import EXPERTS, HIDDEN

pytestmark = pytest.mark.gpu

RANKS = 4 if SEATS >= 4 else 2
LAYOUTS = tuple(
    Layout(tp, own_rows, RANKS)
    for tp in (1, 2, 4)
    for own_rows in (False, True)
    if tp <= RANKS and (tp > 1 or not own_rows)
)
ROUTED = (
    ((),) * 4,
    ((), (3,), (), ()),
    ((5,) * 3, (5,), (5,) * 2, (5,) * 4),
    ((), (0, 1, 2, 3, 4, 5, 6, 7), (), ()),
    ((0, 2), (4, 6, 1), (3,), (5, 7, 0, 2)),
)
CASES = tuple(
    Case(layout, strategy, routed[:RANKS], True, bfloat16, True, True)
    for layout in LAYOUTS
    for strategy in ("always", "sentinel")
    for routed in ROUTED
    for bfloat16 in (False, True)
)


@pytest.fixture(autouse=True)
def _enough_gpus() -> None:
    if SEATS < RANKS:
        pytest.skip("needs two GPUs")


def all_cases(rank: int) -> list[tuple[list[list[float]], bool]]:
    return [layer_on_rank(rank, case, "cuda") for case in CASES]


def test_all_layouts_give_what_a_dense_layer_gives() -> None:
    outcome = run_ranks(all_cases, ranks=RANKS, rings=None, backend="nccl")

    assert outcome.ending == "finished", outcome.failures
    for number, case in enumerate(CASES):
        answers = [results[number] for results in outcome.results]
        check_results(case, [rows for rows, _ in answers])
        assert all(full for _, full in answers)


def dispatch_stale(rank: int) -> str:
    groups = groups_of(Layout(1, ranks=RANKS))
    dispatcher = MoEDispatcher(groups, ExpertPlacement(EXPERTS, RANKS))
    sizes = (*(1,) * (RANKS - 1), 9 if rank == 1 else 1)
    ids = torch.zeros(1, 1, dtype=torch.int64, device="cuda")
    ones = torch.ones(1, HIDDEN, device="cuda")
    try:
        dispatcher.dispatch(ones, ones[:, :1], ids, sizes)
    except DispatchError as error:
        return str(error)
    return ""


def test_sizes_that_are_stale_on_one_rank_stop_all() -> None:
    outcome = run_ranks(dispatch_stale, ranks=RANKS, rings=None, backend="nccl")

    assert outcome.ending == "finished", outcome.failures
    assert len(set(outcome.results)) == 1
    assert "rank 1: " in outcome.results[0]
    assert f"sizes {'1 ' * (RANKS - 1)}9," in outcome.results[0]
