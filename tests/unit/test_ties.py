"""Groups of things that share ties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ncclscope.model.ties import tied


def test_things_are_grouped_through_others() -> None:
    found = tied(["ab", "c", "", "bd", "ce", "xe"], set)
    assert found == [["ab", "bd"], ["c", "ce", "xe"], [""]]


def test_a_late_thing_joins_two_groups() -> None:
    assert tied(["a", "b", "c", "bc", "ac"], set) == [["a", "b", "c", "bc", "ac"]]


@given(st.lists(st.sets(st.integers(0, 12), max_size=3), max_size=12))
def test_groups_are_those_of_repeated_merging(ties: list[set[int]]) -> None:
    expected: list[set[int]] = []
    for place in range(len(ties)):
        group = {place}
        shared = set(ties[place])
        while more := {one for one in range(len(ties)) if shared & ties[one]} - group:
            group |= more
            shared.update(*(ties[one] for one in more))
        if group not in expected:
            expected.append(group)
    found = tied(range(len(ties)), lambda place: ties[place])
    assert found == [sorted(group) for group in expected]
