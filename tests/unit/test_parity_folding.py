"""Loops found again, and what turns one sequence into another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from ncclscope.parity.changes import Change, changes
from ncclscope.parity.folding import Loop, Node, fold, length
from ncclscope.parity.hunks import rows

CALLS = st.lists(st.integers(0, 3), max_size=40)
TEXTS = [f"call-{number}" for number in range(10)]


def apply(a: list[int], b: list[int], found: list[Change]) -> list[int]:
    result: list[int] = []
    place = 0
    for change in found:
        result += a[place : change.a_start]
        assert len(result) == change.b_start
        result += b[change.b_start : change.b_stop]
        place = change.a_stop
    return result + a[place:]


def common(a: list[int], b: list[int]) -> int:
    """Length of the longest common subsequence, by the book."""
    row = [0] * (len(b) + 1)
    for x in a:
        above = row
        row = [0]
        for place, y in enumerate(b):
            row.append(above[place] + 1 if x == y else max(above[place + 1], row[-1]))
    return row[-1]


def screen(a: list[int], b: list[int], context: int = 3) -> list[str]:
    return [
        f"{row.kind}{'  ' * row.depth}{row.text}{f' x{row.times}' if row.times > 1 else ''}"
        for row in rows(a, b, changes(a, b), TEXTS, context)
    ]


def test_a_loop_of_layers_is_one_line() -> None:
    assert fold([5] * 61) == (Loop(61, (5,)),)


def test_loops_of_loops() -> None:
    layer = [1, 1, 2, 3, 2, 3]
    step = [0, *layer * 61, 4]

    assert fold([9, *step * 50]) == (
        9,
        Loop(50, (0, Loop(61, (Loop(2, (1,)), Loop(2, (2, 3)))), 4)),
    )


def test_what_becomes_short_by_folding_is_folded_again() -> None:
    assert fold([1, 2, 3, 4, 5] * 2 + [6] + [1, 2, 3, 4, 5] * 2 + [6]) == (
        Loop(2, (Loop(2, (1, 2, 3, 4, 5)), 6)),
    )


def test_nothing_repeats_in_a_sequence_without_repetition() -> None:
    assert fold([]) == ()
    assert fold([1, 2, 1, 3]) == (1, 2, 1, 3)


def unfold(nodes: Iterable[Node]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, Loop):
            yield from [*unfold(node.body)] * node.count
        else:
            yield node


@given(CALLS)
def test_folding_loses_nothing(calls: list[int]) -> None:
    folded = fold(calls)

    assert list(unfold(folded)) == calls
    assert length(folded) == len(calls)


@given(CALLS, CALLS)
def test_changes_turn_one_into_the_other_with_the_fewest_edits(a: list[int], b: list[int]) -> None:
    found = changes(a, b)

    assert apply(a, b, found) == b
    edits = sum(c.a_stop - c.a_start + c.b_stop - c.b_start for c in found)
    assert edits == len(a) + len(b) - 2 * common(a, b)


def test_sequences_with_little_in_common_still_take_a_moment_only() -> None:
    a = [number * 7 % 50 for number in range(4000)]
    b = [number * 11 % 53 + 20 for number in range(4000)]

    assert apply(a, b, changes(a, b)) == b


def test_of_equal_calls_the_last_is_the_new_one() -> None:
    assert changes([1, 1, 2], [1, 1, 1, 2]) == [Change(2, 2, 2, 3)]


def test_one_change_in_each_layer_is_one_change_on_the_screen() -> None:
    before, after = [0, *[1, 2] * 61, 3], [0, *[1, 1, 2] * 61, 3]

    assert screen(before, after) == [
        " call-0",
        "  x61",
        "   call-1",
        "+  call-1",
        "   call-2",
        " call-3",
    ]


def test_what_is_far_from_a_change_is_left_out() -> None:
    same = [1, 2, 3, 4, 5, 6, 7]

    assert screen([*same, 8], [*same, 9], context=2) == [
        "@5 equal calls",
        " call-6",
        " call-7",
        "-call-8",
        "+call-9",
    ]


def test_numbers_are_those_of_each_side() -> None:
    found = rows([1, 1, 2, 3], [1, 1, 3], changes([1, 1, 2, 3], [1, 1, 3]), TEXTS)

    assert [(row.kind, row.a, row.b) for row in found] == [
        (" ", (0, 2), (0, 2)),
        ("-", (2, 1), (2, 0)),
        (" ", (3, 1), (2, 1)),
    ]
