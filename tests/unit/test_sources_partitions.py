"""Groups without names that divide all ranks among them are held to play the same part."""

from __future__ import annotations

import pytest

from ncclscope.model import Communicator
from ncclscope.readers.partitions import with_parts

Group = tuple[str, tuple[int, ...]]


def kinds(groups: list[Group], expected: int = 4, backend: str = "nccl") -> list[str]:
    """Return the kind of each group, in the order in which they are given."""
    communicators = {
        f"{label}/{ranks}": Communicator(f"{label}/{ranks}", label, ranks, backend)
        for label, ranks in groups
    }
    return [comm.kind for comm in with_parts(communicators, expected).values()]


def test_groups_made_in_turn_that_divide_all_ranks() -> None:
    pairs: list[Group] = [("pg1", (0, 1)), ("pg2", (2, 3)), ("pg3", (0, 2)), ("pg4", (1, 3))]
    first, second = "pg1 to pg2", "pg3 to pg4"

    assert kinds([("world", (0, 1, 2, 3)), *pairs]) == ["world", first, first, second, second]
    assert kinds(pairs[::-1]) == [second, second, first, first]
    dumps: list[Group] = [("group 9", (0, 1)), ("group 10", (2, 3))]
    assert kinds(dumps) == ["group 9 to group 10"] * 2


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([("pg1", (0, 1)), ("pg3", (2, 3))], 4),  # something was made between them
        ([("pg1", (0, 1)), ("pg2", (1, 2))], 4),
        ([("pg1", (0, 1)), ("pg2", (2, 3))], 6),  # somebody has none
        ([("pg1", (0, 1)), ("pg2", (2, 3, 4))], 5),
        ([("stage1", (0, 1)), ("stage2", (2, 3))], 4),  # what has a name has a part of its own
        ([("pg1", (0, 1, 2, 3)), ("pg2", (3, 2, 1, 0))], 4),
    ],
)
def test_others_stay_what_they_are(groups: list[Group], expected: int) -> None:
    assert kinds(groups, expected) == [label for label, _ in groups]


def test_after_one_that_does_not_fit_the_next_do() -> None:
    groups: list[Group] = [("pg1", (0, 3)), ("pg2", (0, 1)), ("pg3", (2, 3))]
    assert kinds(groups) == ["pg1", "pg2 to pg3", "pg2 to pg3"]
