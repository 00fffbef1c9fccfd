"""Deletions and insertions that turn one sequence into another, as diff(1) finds them.

The search of :mod:`ncclscope.engine.sequences.align`, without replacements and without the equal
beginnings and ends. That module compares ranks that still run. Both sequences are complete here,
and calls beyond the end of the other count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from ncclscope.engine.sequences.align import grouped, levels, way_back

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
        moves = _path(a[x:], b[y:])
        for edit in grouped(moves):
            first, second = x + edit.peer_start, y + edit.start
            yield Change(first, first + edit.deleted, second, second + edit.inserted)
        x, y = x + len(moves) - moves.count("+"), y + len(moves) - moves.count("-")
    if x < len(a) or y < len(b):
        yield Change(x, len(a), y, len(b))


def _path(a: Sequence[int], b: Sequence[int]) -> str:
    """Return the moves of the shortest path, or of the furthest one after MOST edits."""
    found = []
    for level in islice(levels(b, a, replacing=False), MOST + 1):
        found.append(level)
        if level.get(len(b) - len(a)) == len(b):
            return way_back(found, len(b) - len(a))
    return way_back(
        found, max(level, key=lambda diagonal: (2 * level[diagonal] - diagonal, diagonal))
    )
