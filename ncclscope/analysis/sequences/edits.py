"""How one sequence of calls turns into another: what was left out, put in, or replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Edit", "block_edits", "cost_of", "edits", "reordered"]

MOST = 400
"""Differing calls after which two sequences are held to have nothing more in common."""


OVER = 0.6
"""What a call beyond the other's end counts against an edit.

Between one half and one: a rank that left out every second of 34 calls must not look like
one that replaced eight and is 17 behind, and nobody's lead must be explained by omissions.
"""


FURTHER = 0.25
"""What each further call of a block counts that is left out, or put in, as a whole."""
REORDERED = 1.5
"""What two blocks count that are the other way round: more than one omission, less than an
omission and an insertion."""
LONGEST_BLOCK = 256
"""Calls of a block that is looked for."""


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

    To leave a call out, to put one in, and to post another one in its place count one each
    (Levenshtein's distance, found by Ukkonen's furthest-reaching points, so that the cost
    grows with the difference and not with the product of the lengths). What one sequence has
    beyond the end of the other is no edit, since a rank that is further on is not a rank that
    differs; but a way that leaves less over is worth a few edits more, see OVER. A last edit
    with nothing in agreement after it proves no more than that one call stands in place of
    another, and is given as that.
    """
    moves = _shortest(odd, peer)
    found: list[Edit] = []
    x = y = place = 0
    while place < len(moves):
        start = place
        while place < len(moves) and moves[place] == "=":
            place += 1
        met = place - start
        x, y = x + met, y + met
        if found and met:
            found[-1] = found[-1]._replace(met=met)
        if place == len(moves):
            break
        first_x, first_y = x, y
        while place < len(moves) and moves[place] != "=":
            x += moves[place] in "+*"
            y += moves[place] in "-*"
            place += 1
        found.append(Edit(first_x, x - first_x, first_y, y - first_y, 0))
    if found and not found[-1].met:
        last = found[-1]
        found[-1] = last._replace(put=max(last.put, 1), left=max(last.left, 1))
    return found


def _shortest(odd: Sequence[int], peer: Sequence[int]) -> str:
    """Returns the cheapest way through both.

    ``=`` both go on, ``+`` the odd one alone, ``-`` the peer alone, ``*`` one for the other.
    """
    n, m = len(odd), len(peer)
    levels: list[dict[int, int]] = []
    best: tuple[float, int, int] | None = None
    for cost in range(min(n + m, MOST) + 1):
        if best is not None and cost >= best[0]:
            break
        level: dict[int, int] = {}
        before = levels[-1] if levels else {}
        for diagonal in range(-cost, cost + 1):
            x = 0 if not cost else _best_step(before, diagonal)[0]
            y = x - diagonal
            if x < 0 or x > n or y < 0 or y > m:
                continue
            while x < n and y < m and odd[x] == peer[y]:
                x, y = x + 1, y + 1
            level[diagonal] = x
            if x == n or y == m:
                over = cost + OVER * ((n - x) + (m - y))
                if best is None or over < best[0]:
                    best = (over, cost, diagonal)
        levels.append(level)
    if best is None:
        return "*"
    _, cost, diagonal = best
    return _way_back(levels[: cost + 1], diagonal)


def _best_step(before: dict[int, int], diagonal: int) -> tuple[int, str]:
    """Returns the furthest point of a diagonal that one more edit leads to, and which edit."""
    steps = [(-1, "")]
    if diagonal in before:
        steps.append((before[diagonal] + 1, "*"))
    if diagonal - 1 in before:
        steps.append((before[diagonal - 1] + 1, "+"))
    if diagonal + 1 in before:
        steps.append((before[diagonal + 1], "-"))
    return max(steps)


def _way_back(levels: list[dict[int, int]], diagonal: int) -> str:
    moves: list[str] = []
    x = levels[-1][diagonal]
    for cost in range(len(levels) - 1, 0, -1):
        start, move = _best_step(levels[cost - 1], diagonal)
        moves += "=" * (x - start)
        moves.append(move)
        diagonal += {"*": 0, "+": -1, "-": 1}[move]
        x = levels[cost - 1][diagonal]
    moves += "=" * x
    return "".join(reversed(moves))


def cost_of(found: Sequence[Edit], odd: Sequence[int], peer: Sequence[int]) -> float:
    """Return what edits count, with what one sequence then has beyond the other's end."""
    surplus = sum(edit.put - edit.left for edit in found)
    usual = sum(max(edit.put, edit.left) for edit in found)
    return usual + OVER * abs(len(odd) - len(peer) - surplus)


def block_edits(odd: Sequence[int], peer: Sequence[int]) -> list[tuple[float, Edit]]:
    """Return the one block that was left out, and the one that was put in, each with its cost.

    A round of four calls that is left out is one omission and not four. Both sequences must agree
    after it, to their ends, on at least as many calls as the block has.

    Returns:
        The cheaper first; nothing where no block makes the sequences agree.
    """
    found: list[tuple[float, Edit]] = []
    for way in (0, 1):
        for size in range(1, LONGEST_BLOCK + 1):
            put, left = (size, 0) if way else (0, size)
            mine, theirs = odd[put:], peer[left:]
            met = min(len(mine), len(theirs))
            if met < max(2, size):
                break
            if mine[:met] == theirs[:met]:
                cost = 1 + FURTHER * (size - 1) + OVER * abs(len(mine) - len(theirs))
                found.append((cost, Edit(0, put, 0, left, met)))
                break
    return sorted(found)


def reordered(odd: Sequence[int], peer: Sequence[int]) -> tuple[float, tuple[int, int]] | None:
    """Find two neighbouring blocks that are the other way round.

    Returns:
        The cost, and the lengths of the block that ``peer`` has first, and of the one that ``odd``
        has first; None where the sequences do not agree again after both, to their ends.
    """
    end = min(len(odd), len(peer))
    for both in range(2, min(end, LONGEST_BLOCK) + 1):
        if odd[both:end] != peer[both:end]:
            continue
        for first in range(1, both):
            if odd[: both - first] == peer[first:both] and odd[both - first : both] == peer[:first]:
                return REORDERED + OVER * abs(len(odd) - len(peer)), (first, both - first)
    return None
