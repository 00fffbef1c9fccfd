"""Changes between two sequences: they turn the one into the other, and are as few as can be."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from hypothesis import given
from hypothesis import strategies as st

from ncclscope.parity.changes import Change, changes

CALLS = st.lists(st.integers(0, 3), max_size=40)


def applied(a: Sequence[int], b: Sequence[int], found: Sequence[Change]) -> list[int]:
    result: list[int] = []
    x = y = 0
    for change in found:
        kept = list(a[x : change.a_start])
        assert kept == list(b[y : change.b_start])
        result += kept + list(b[change.b_start : change.b_stop])
        x, y = change.a_stop, change.b_stop
    return result + list(a[x:])


def edits(found: Sequence[Change]) -> int:
    return sum(change.a_stop - change.a_start + change.b_stop - change.b_start for change in found)


@given(CALLS, CALLS)
def test_changes_turn_one_into_the_other(a: list[int], b: list[int]) -> None:
    found = changes(a, b)

    assert applied(a, b, found) == b
    assert (found == []) == (a == b)
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    assert edits(found) <= len(a) + len(b) - 2 * sum(block.size for block in blocks)


def test_one_call_more_in_a_long_sequence() -> None:
    a = [0, 1] * 30_000

    assert changes(a, [*a[:20_001], 2, *a[20_001:]]) == [Change(20_001, 20_001, 20_001, 20_002)]
    assert changes(a, a[:-1]) == [Change(59_999, 60_000, 59_999, 59_999)]


def test_of_equal_calls_the_last_is_the_one_that_is_new() -> None:
    assert changes([5, 5, 6], [5, 5, 5, 6]) == [Change(2, 2, 2, 3)]
