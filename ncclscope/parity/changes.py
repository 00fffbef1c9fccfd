"""Deletions and insertions that turn one sequence into another, as diff(1) finds them.

Myers' algorithm, without the equal beginnings and ends. Both sequences are complete here, and calls
beyond the end of the other count; ``analysis.sequences.edits`` compares ranks that still run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Change", "changes"]

MOST = 256
"""Most edits that one search considers.

Two sequences with nothing in common would cost the product of their lengths. Beyond this number
the furthest path is taken, and the search starts again from its end.
"""


class Change(NamedTuple):
    """Replacement of ``a[a_start:a_stop]`` by ``b[b_start:b_stop]``; one of them may be empty."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int


def changes(a: Sequence[int], b: Sequence[int]) -> list[Change]:
    """Return the changes that turn ``a`` into ``b``, in order, none when they are equal."""
    head, tail = _ends(a, b)
    own, other = a[head : len(a) - tail], b[head : len(b) - tail]
    found = [Change(*(place + head for place in change)) for change in _search(own, other)]
    return _joined(_slid(a, b, _joined(found)))


def _ends(a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    """Return how many items the sequences have in common at their beginnings and ends."""
    shorter = min(len(a), len(b))
    if not shorter:
        return 0, 0
    own, other = np.array(a, np.int64), np.array(b, np.int64)
    unlike = np.flatnonzero(own[:shorter] != other[:shorter])
    head = int(unlike[0]) if len(unlike) else shorter
    # Do not count equal items at the beginning again from the end.
    rest = shorter - head
    unlike = np.flatnonzero(own[len(own) - rest :][::-1] != other[len(other) - rest :][::-1])
    return head, int(unlike[0]) if len(unlike) else rest


def _joined(found: Sequence[Change]) -> list[Change]:
    joined: list[Change] = []
    for change in found:
        if joined and (joined[-1].a_stop, joined[-1].b_stop) == change[::2]:
            joined[-1] = joined[-1]._replace(a_stop=change.a_stop, b_stop=change.b_stop)
        else:
            joined.append(change)
    return joined


def _slid(a: Sequence[int], b: Sequence[int], found: Sequence[Change]) -> list[Change]:
    """Move each change to the last of its possible positions.

    Of three equal calls any may be the inserted one. Choosing always the last makes a change in
    each of 61 layers the same 61 times.
    """
    slid: list[Change] = []
    end_a, end_b = len(a), len(b)
    for change in reversed(found):
        a_start, a_stop, b_start, b_stop = change
        while a_stop < end_a and b_stop < end_b:
            inserted = a_start == a_stop and b[b_start] == b[b_stop]
            deleted = b_start == b_stop and a[a_start] == a[a_stop]
            if not (inserted or deleted):
                break
            a_start, a_stop, b_start, b_stop = a_start + 1, a_stop + 1, b_start + 1, b_stop + 1
        slid.append(Change(a_start, a_stop, b_start, b_stop))
        end_a, end_b = a_start, b_start
    slid.reverse()
    return slid


def _search(a: Sequence[int], b: Sequence[int]) -> Iterator[Change]:
    x = y = 0
    while x < len(a) and y < len(b):
        path = _shortest(a, b, x, y)
        for (x0, y0), (x1, y1) in path[1]:
            yield Change(x0, x1, y0, y1)
        x, y = path[0]
    if x < len(a) or y < len(b):
        yield Change(x, len(a), y, len(b))


Point = tuple[int, int]
_NOWHERE = -1 << 62


def _shortest(
    a: Sequence[int], b: Sequence[int], x0: int, y0: int
) -> tuple[Point, list[tuple[Point, Point]]]:
    """Return the point that the search reached from (x0, y0), and the edits on the way."""
    n, m = len(a) - x0, len(b) - y0
    furthest: dict[int, int] = {}
    rounds: list[dict[int, int]] = []
    for cost in range(MOST + 1):
        rounds.append({})
        for diagonal in range(-cost, cost + 1, 2):
            x = _step(furthest, diagonal, cost)[0]
            y = x - diagonal
            if x < 0 or x > n or y > m:
                continue
            while x < n and y < m and a[x0 + x] == b[y0 + y]:
                x, y = x + 1, y + 1
            rounds[-1][diagonal] = x
            if x == n and y == m:
                return (x0 + x, y0 + y), _way_back(rounds, diagonal, x0, y0)
        furthest = rounds[-1]
    diagonal = max(furthest, key=lambda diagonal: (2 * furthest[diagonal] - diagonal, -diagonal))
    x = furthest[diagonal]
    return (x0 + x, y0 + x - diagonal), _way_back(rounds, diagonal, x0, y0)


def _step(furthest: dict[int, int], diagonal: int, cost: int) -> tuple[int, int]:
    """Return the x that one more edit reaches on a diagonal, and the diagonal it comes from."""
    if not cost:
        return 0, 0
    deleted = furthest.get(diagonal - 1, _NOWHERE) + 1
    inserted = furthest.get(diagonal + 1, _NOWHERE)
    # Of two equal paths prefer the one that deletes first, as diff prints it.
    return (inserted, diagonal + 1) if inserted > deleted else (deleted, diagonal - 1)


def _way_back(
    rounds: list[dict[int, int]], diagonal: int, x0: int, y0: int
) -> list[tuple[Point, Point]]:
    edits: list[tuple[Point, Point]] = []
    for cost in range(len(rounds) - 1, 0, -1):
        after, before = _step(rounds[cost - 1], diagonal, cost)
        start = rounds[cost - 1][before]
        edits.append(
            (
                (x0 + start, y0 + start - before),
                (x0 + after, y0 + after - diagonal),
            )
        )
        diagonal = before
    edits.reverse()
    return edits
