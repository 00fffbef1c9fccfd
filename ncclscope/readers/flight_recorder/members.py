"""Infer the members of groups that no dump describes, as torch 2.13 describes none on gloo.

Ranks with entries of a group are members. Others may be: those that have posted no call on it yet,
and those without a dump. The sizes of gathers and scatters show how many there are. Which they are
follows from sister groups, which divide the ranks of a job evenly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import isqrt
from typing import NamedTuple

Members = tuple[int, ...]


class Known(NamedTuple):
    """What is known of a group.

    Attributes:
        ranks: Members that posted calls on it.
        size: Number of members, from the sizes of gathers and scatters; 0 if unknown.
    """

    ranks: frozenset[int]
    size: int

    def lacks(self, count: int) -> bool:
        """Return whether as many members are known to be missing."""
        return count > 0 and len(self.ranks) + count == self.size

    def is_whole(self, members: Collection[int]) -> bool:
        """Return whether some ranks are known to be all members."""
        return len(members) == self.size


def infer(sisters: Sequence[Known], world: int, absent: Collection[int]) -> list[Members]:
    """Return the members of groups with the same description, as far as they are known.

    Args:
        sisters: The groups.
        world: Number of ranks of the job.
        absent: Ranks without a dump, which may be members of any group: none with entries is.
    """
    sizes = {one.size for one in sisters if one.size}
    largest = max(len(one.ranks) for one in sisters)
    size = largest if not sizes else min(sizes) if len(sizes) == 1 else 0
    grids = list(_grids([one.ranks for one in sisters], size, world)) if len(sisters) > 1 else []
    if len(grids) == 1:
        return grids[0]
    return [
        tuple(sorted({*one.ranks, *(absent if one.lacks(len(absent)) else ())})) for one in sisters
    ]


def are_partial(sisters: Sequence[Known], members: Sequence[Members], world: int) -> list[bool]:
    """Return of each group whether other ranks may be members, too.

    Args:
        sisters: The groups.
        members: What was inferred of each.
        world: Number of ranks of the job.
    """
    is_even = len({len(own) for own in members}) == 1 and len(members) > 1
    is_all = sum(map(len, members)) == len({rank for own in members for rank in own}) == world
    return [
        not one.is_whole(own) and not (is_even and is_all and not one.size)
        for one, own in zip(sisters, members, strict=True)
    ]


def _grids(known: Sequence[Collection[int]], size: int, world: int) -> Iterator[list[Members]]:
    """Yield the cells, one for each group, of each even division of the ranks that holds them."""
    if size < 2 or world % size:
        return
    for stride in _divisors(world // size):
        cells = [_cells(own, stride, size) for own in known]
        if all(len(own) == 1 for own in cells) and len(set().union(*cells)) == len(cells):
            yield [_ranks_of(next(iter(own)), stride, size) for own in cells]


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number: hostile dumps may have many groups, and many ranks."""
    small = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def _cells(ranks: Iterable[int], stride: int, size: int) -> set[tuple[int, int]]:
    return {(rank // (stride * size), rank % stride) for rank in ranks}


def _ranks_of(cell: tuple[int, int], stride: int, size: int) -> Members:
    block, offset = cell
    first = block * stride * size + offset
    return tuple(range(first, first + stride * size, stride))
