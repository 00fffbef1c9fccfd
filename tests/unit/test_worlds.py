"""The generator, executor and score of worlds, on jobs whose outcome is known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.executor import play
from tests.worlds.faults import Planted
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
