"""Loops, found again in what they posted.

A model of 61 layers posts the same calls 61 times. On a screen and in a file that a person
reviews this is one line and a number. Nothing is known of the program's source here: what
repeats in a row is a loop, the shortest period first, and loops of loops follow from looking
again at what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Loop", "Node", "fold", "length", "unfold"]

LONGEST = 2048
"""Lines of a loop's body, after what is in it has been folded."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Something that is posted several times in a row.

    Attributes:
        count: How many times.
        body: What is posted each time.
    """

    count: int
    body: tuple[Node, ...]


Node = int | Loop
"""A call, by a number that stands for all calls that are spelled like it, or a loop."""

Numbers = NDArray[np.int64]


def fold(calls: Sequence[int]) -> tuple[Node, ...]:
    """Folds what repeats.

    Args:
        calls: Each call by its number, all of them 0 or more.

    Returns:
        The same calls, as :func:`unfold` shows. Equal input gives equal output.
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
        period = 1  # what was a long period may be a short one now
    return tuple(_node(int(number), nodes) for number in numbers)


def _node(number: int, nodes: dict[int, Node]) -> Node:
    return nodes[number] if number < 0 else number


def _pieces(numbers: Numbers, period: int) -> Iterator[tuple[int, int]]:
    """Yields where something of this length is repeated at once, and how many times."""
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


def unfold(nodes: Iterable[Node]) -> Iterator[int]:
    """Yields every call of a folded sequence."""
    for node in nodes:
        if isinstance(node, Loop):
            for _ in range(node.count):
                yield from unfold(node.body)
        else:
            yield node


def length(nodes: Iterable[Node]) -> int:
    """Returns how many calls a folded sequence stands for."""
    return sum(node.count * length(node.body) if isinstance(node, Loop) else 1 for node in nodes)
