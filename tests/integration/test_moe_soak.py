"""A few hundred steps of what `python -m tests.soak` runs by the thousand: eight ranks, traced."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.soak.routing import KINDS, Plan
from tests.soak.trials import catch, make_plan, soak

pytestmark = pytest.mark.slow

STEPS = 200


@pytest.mark.parametrize(("strategy", "sequence_parallel"), [("always", True), ("sentinel", False)])
def test_ranks_post_the_same_whatever_the_routing(strategy: str, sequence_parallel: bool) -> None:
    plan = make_plan(strategy, count=STEPS, sequence_parallel=sequence_parallel)

    soaked = soak(plan)

    assert soaked.passed, soaked
    (world,) = [one for one in soaked.sequences if one.label == "world"]
    assert len(world.hashes) == 8
    assert world.calls[0] >= 2 * STEPS


@pytest.mark.parametrize(
    ("seed", "idle"),
    # One rank has a token and seven have none; one rank has none.
    [(0, 7), (3, 1)],
)
def test_the_buggy_reference_is_caught_in_the_step_in_which_ranks_diverge(
    seed: int, idle: int
) -> None:
    caught = catch(make_plan("data_dependent", count=300, seed=seed))

    assert caught.loads.count(0) == idle
    assert caught.passed, caught
    assert len(caught.named) == 1


def test_steps_are_the_same_for_everybody_and_of_all_kinds() -> None:
    plan = make_plan("always", count=STEPS)
    steps = [plan.step(number) for number in range(1, STEPS + 1)]

    assert steps == [plan.step(number) for number in range(1, STEPS + 1)]
    loads = [counts for step in steps for counts in plan.loads(step)]
    tokens = [sum(counts) for counts in loads]
    assert {0, 1} < set(tokens)
    # No token for one rank, for one replica; all tokens for one rank; some for everybody.
    assert {1, 4, 7, 0} <= {counts.count(0) for counts in loads if sum(counts) > 8}
    assert any(0 in step.rows and any(step.rows) for step in steps)
    assert len(KINDS) == 8


def test_a_harmless_step_keeps_every_rank_busy() -> None:
    plan = Plan(make_plan("always", count=STEPS).program, "always", hazard=0.0)

    assert plan.divergence() is None
    assert all(all(counts) for n in range(1, STEPS) for counts in plan.loads(plan.step(n)))
