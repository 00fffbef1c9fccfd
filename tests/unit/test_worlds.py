"""The generator, executor and score of worlds, on jobs whose outcome is known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds import exhaustive
from tests.worlds.executor import play
from tests.worlds.faults import Planted
from tests.worlds.rivals import explanations
from tests.worlds.sample import sample
from tests.worlds.score import judge
from tests.worlds.truth import Story, Truth
from tests.worlds.world import Act, World

ONE, TWO = Act("all_reduce", "world", (8,), redop="sum"), Act("barrier", "pair", waits=True)
PAIRS = {"world": (0, 1), "pair": (0, 1)}


def test_the_same_seed_gives_the_same_world() -> None:
    for number in range(10):
        assert sample(3, number).world == sample(3, number).world


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_call_left_out_shifts_those_after_it(backend: str) -> None:
    world = World(2, backend, PAIRS, [[ONE] * 3, [ONE] * 2])

    outcome = play(world)

    assert [(rank, call.number) for rank, call in outcome.stuck().items()] == [(0, 2)]
    assert outcome.ended == {1: "exit"}


@pytest.mark.parametrize(("streams", "stuck"), [({}, {0, 1}), ({"pair": 1}, set())])
def test_opposite_orders_hang_on_one_stream_alone(streams: dict[str, int], stuck: set[int]) -> None:
    world = World(2, "nccl", PAIRS, [[ONE, TWO], [TWO, ONE]], streams)
    world.programs[1] = [Act("barrier", "pair"), ONE]

    assert set(play(world).stuck()) == stuck


@pytest.mark.parametrize(
    ("ranks", "confidence", "word"),
    [([2], "certain", "right"), ([1], "certain", "certain and wrong"), ([1], "likely", "wrong")],
)
def test_a_verdict_is_held_against_the_truth(ranks: list[int], confidence: str, word: str) -> None:
    kinds = {"missing_call": "certain"}
    story = Story(Planted("skipped_call", 2, 3, kinds), kinds, (), {})
    cause: dict[str, Any] = {"role": "cause", "kind": "missing_call", "confidence": confidence}
    cause |= {"diverging_ranks": ranks, "candidate_ranks": [], "comm": None, "seq": None}

    document = {"status": "diverged", "findings": [cause]}

    assert judge(document, Truth((story,), frozenset(), frozenset({0}), False)) == word


def small(name: str) -> exhaustive.Case:
    case = exhaustive.named(name)
    assert case is not None
    return case


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("gloo2:AB:0:A", {0, 1}),  # one left out a call, or the other made one more
        ("gloo3:AB:0:A", {0}),
        ("nccl3:Aa:0:A", {0, 1}),  # the third rank is not in the pair
        ("gloo2:AB:0:A!raise", {0}),  # the error is recorded
        ("gloo2:A", {-1}),
    ],
)
def test_rivals_of_a_fault_are_enumerated(name: str, ranks: set[int]) -> None:
    assert {each.rank for each in explanations(small(name).records)} == ranks


def test_what_was_planted_is_among_the_explanations() -> None:
    for case in exhaustive.cases(2)[::10]:
        found = {each.rank for each in explanations(case.records)}

        assert case.job.rank in found or found == {-1}, case.name


@pytest.mark.parametrize(
    ("name", "ranks", "word"),
    [
        ("gloo2:AB:0:A", [0], "certain, with a rival"),
        ("gloo3:AB:0:A", [0], "right"),
        ("gloo3:AB:0:A", [1], "certain and wrong"),
        ("gloo2:A", [0], "false alarm"),
    ],
)
def test_a_certain_verdict_on_a_small_job_has_no_rival(
    name: str, ranks: list[int], word: str
) -> None:
    case = small(name)
    cause: dict[str, Any] = {"role": "cause", "kind": "missing_call", "confidence": "certain"}
    document = {
        "status": "hung",
        "findings": [cause | {"diverging_ranks": ranks, "candidate_ranks": []}],
    }

    assert exhaustive.judge(document, case, list(explanations(case.records)), True) == word


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_thread_that_waits_leaves_the_other_one_alone(backend: str) -> None:
    other = Act("barrier", "pair", waits=True, thread=1)
    world = World(2, backend, PAIRS, [[other, ONE, ONE], [ONE, ONE]], {"pair": 1})

    outcome = play(world)

    assert {rank: call.act for rank, call in outcome.stuck().items()} == {0: other}
    assert [len(calls) for calls in outcome.posted] == [3, 2]
    assert outcome.ended == {1: "exit"}
