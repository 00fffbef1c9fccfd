"""Routing patterns are what they are called."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclscope.errors import UsageError
from ncclscope.parity.routing import RoutingPattern, routing_patterns

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 3))


@settings(deadline=None)
@given(SIZES.flatmap(lambda size: routing_patterns(ranks=size[0], experts=size[0] * size[1])))
def test_patterns_are_what_they_are_called(pattern: RoutingPattern) -> None:
    received = [sum(pattern.receives(rank)) for rank in range(pattern.ranks)]
    held = [len(pattern.routes(rank)) for rank in range(pattern.ranks)]

    assert sum(received) == sum(held) == pattern.tokens
    assert all(0 <= expert < pattern.experts for own in pattern.routed for expert in own)
    if pattern.name == "empty step":
        assert pattern.tokens == 0
    elif pattern.name == "single token":
        assert pattern.tokens == 1
    elif pattern.name == "all tokens to one expert":
        assert len({expert for own in pattern.routed for expert in own}) == 1
        assert 0 not in held
    elif pattern.name == "no token to a rank":
        assert received.count(0) == 1
    elif pattern.name == "no token from a rank":
        assert held.count(0) == 1


def test_each_kind_is_drawn() -> None:
    names = set()

    @settings(max_examples=200, database=None, derandomize=True)
    @given(routing_patterns(ranks=4))
    def draw(pattern: RoutingPattern) -> None:
        names.add(pattern.name)

    draw()

    assert names == {
        "all tokens to one expert",
        "any batch",
        "empty step",
        "no token from a rank",
        "no token to a rank",
        "single token",
    }


def test_sends_of_all_are_receives_of_all() -> None:
    pattern = RoutingPattern("two", experts=4, routed=((0, 1, 3), (2,)))

    assert [pattern.sends(rank) for rank in (0, 1)] == [[2, 1], [0, 1]]
    assert [pattern.receives(rank) for rank in (0, 1)] == [[2, 0], [1, 1]]


@pytest.mark.parametrize(("ranks", "experts"), [(0, 4), (4, 6), (4, 2)])
def test_experts_must_be_shared_evenly(ranks: int, experts: int) -> None:
    with pytest.raises(UsageError, match="multiple of the ranks"):
        routing_patterns(ranks=ranks, experts=experts)
