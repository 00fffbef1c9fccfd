"""Loop detection in call sequences.

A model of 61 layers posts the same calls 61 times; screens and baselines show one line and a
number. The program's source is not used: calls that repeat in a row are a loop, the shortest period
first. Nested loops are found by searching again in the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST = 2048
"""Most lines in a loop's body, after inner loops have been collapsed."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Calls that repeat in a row.

    Attributes:
        count: Number of repetitions.
        body: Calls and loops of one repetition.
    """

    count: int
    body: tuple[Node, ...]


Node = int | Loop
"""A loop, or the number of a call; equal spellings have equal numbers."""

Numbers = NDArray[np.int64]
"""Numbers of calls, 0 or more, and of loops, negative; shape ``[n]``."""


def fold(calls: Sequence[int]) -> tuple[Node, ...]:
    """Replace repeated calls by loops.

    Args:
        calls: Numbers of the calls, 0 or more.

    Returns:
        Calls and loops that :func:`unfold` expands to the input. Equal inputs give equal outputs.
    """
    numbers = np.array(calls, np.int64)
    nodes: dict[int, Node] = {}
    known: dict[Loop, int] = {}
    period = 1
    while period <= LONGEST and 2 * period <= len(numbers):
        pieces = list(_pieces(numbers, period))
        if not pieces:
            period += 1
            continue
        parts: list[Numbers] = []
        done = 0
        for start, copies in pieces:
            body = tuple(_node(int(n), nodes) for n in numbers[start : start + period])
            loop = Loop(copies, body)
            number = known.setdefault(loop, -1 - len(known))
            nodes[number] = loop
            parts += [numbers[done:start], np.array([number], np.int64)]
            done = start + copies * period
        numbers = np.concatenate([*parts, numbers[done:]])
        period = 1  # a long period may be a short one now
    return tuple(_node(int(number), nodes) for number in numbers)


def _node(number: int, nodes: dict[int, Node]) -> Node:
    return nodes[number] if number < 0 else number


def _pieces(numbers: Numbers, period: int) -> Iterator[tuple[int, int]]:
    """Yield start and count of repetitions with this period."""
    equal = numbers[period:] == numbers[:-period]
    if np.count_nonzero(equal) < period:
        return
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.view(np.int8), [0]))))
    done = 0
    for low, high in edges.reshape(-1, 2).tolist():
        start = max(low, done)
        copies = (high - start + period) // period
        if copies > 1:
            yield start, copies
            done = start + copies * period


def length(nodes: Iterable[Node]) -> int:
    """Return the number of calls, with loops expanded."""
    return sum(node.count * length(node.body) if isinstance(node, Loop) else 1 for node in nodes)
