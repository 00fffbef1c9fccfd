"""How one sequence of calls turns into another: what was left out, put in, or replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Edit", "edits"]

MOST = 400
"""Differing calls after which two sequences are held to have nothing more in common."""


class Edit(NamedTuple):
    """``odd[start:start + put]`` stands where ``peer[peer_start:peer_start + left]`` should.

    Attributes:
        start: First differing call of the odd sequence.
        put: Calls of the odd sequence that the peer has not.
        peer_start: First differing call of the peer.
        left: Calls of the peer that the odd sequence has not.
        met: Calls that agree after it, until the next edit or an end.
    """

    start: int
    put: int
    peer_start: int
    left: int
    met: int


def edits(odd: Sequence[int], peer: Sequence[int]) -> list[Edit]:
    """Returns the fewest edits that turn ``peer`` into ``odd``, both being signatures.

    This is Myers' O(ND) difference, but for the ends: what one sequence has beyond the end
    of the other is no edit, since a rank that is further on is not a rank that differs. Of
    several ways as short, the one is taken that leaves the most calls in agreement. A
    last edit with nothing in agreement after it proves no more than that one call stands in
    place of another, and is given as that.
    """
    moves = _shortest(odd, peer)
    found: list[Edit] = []
    x = y = 0
    place = 0
    while place < len(moves):
        start, peer_start = x, y
        met = 0
        while place < len(moves) and moves[place] == "=":
            x, y, place = x + 1, y + 1, place + 1
            met += 1
        if found and met:
            found[-1] = found[-1]._replace(met=met)
        if place == len(moves):
            break
        start, peer_start = x, y
        while place < len(moves) and moves[place] != "=":
            x, y = (x + 1, y) if moves[place] == "+" else (x, y + 1)
            place += 1
        found.append(Edit(start, x - start, peer_start, y - peer_start, 0))
    if found and not found[-1].met:
        last = found[-1]
        found[-1] = last._replace(put=max(last.put, 1), left=max(last.left, 1))
    return found


def _shortest(odd: Sequence[int], peer: Sequence[int]) -> str:
    """Returns the shortest way through both: ``=`` both go on, ``+`` odd only, ``-`` peer only."""
    n, m = len(odd), len(peer)
    furthest = {1: 0}
    history: list[dict[int, int]] = []
    for cost in range(min(n + m, MOST) + 1):
        history.append(dict(furthest))
        ends: list[tuple[int, int]] = []
        for diagonal in range(-cost, cost + 1, 2):
            down = diagonal == -cost or (
                diagonal != cost and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            if x > n or y > m:
                furthest[diagonal] = x
                continue
            while x < n and y < m and odd[x] == peer[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= n or y >= m:
                ends.append((x + y, diagonal))
        if ends:
            _, diagonal = max(ends)
            return _way_back(history, cost, diagonal, furthest[diagonal])
    return "+-"


def _way_back(history: list[dict[int, int]], cost: int, diagonal: int, x: int) -> str:
    moves: list[str] = []
    for step in range(cost, 0, -1):
        before = history[step]
        down = diagonal == -step or (
            diagonal != step and before[diagonal - 1] < before[diagonal + 1]
        )
        previous = diagonal + 1 if down else diagonal - 1
        start = before[previous] if down else before[previous] + 1
        moves += "=" * (x - start)
        moves.append("-" if down else "+")
        x, diagonal = before[previous], previous
    moves += "=" * x
    return "".join(reversed(moves))
