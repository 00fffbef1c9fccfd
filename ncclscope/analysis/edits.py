"""How one sequence of calls turns into another: what was left out, put in, or replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Edit", "edits"]

REACH = 96
"""How far ahead the two sequences are searched for the place where they meet again."""
MATCH = 3
"""Equal calls in a row that count as having met again, where so many are left."""


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


def edits(odd: Sequence[int], peer: Sequence[int], limit: int = 256) -> list[Edit]:
    """Returns the edits that turn ``peer`` into ``odd``, both being signatures.

    The two are held to differ in few places: at a difference, the nearest place is taken
    where they meet again. Where one sequence ends, what the other has beyond is no edit: a
    rank that is further on is not a rank that differs.

    Args:
        odd: Signatures of the rank in question.
        peer: Signatures of one it is compared with.
        limit: Edits after which the rest is left alone.
    """
    found: list[Edit] = []
    i = j = 0
    while i < len(odd) and j < len(peer):
        if odd[i] == peer[j]:
            i, j = i + 1, j + 1
            continue
        if len(found) >= limit:
            break
        put, left = _meeting(odd, peer, i, j)
        met = _common(odd, peer, i + put, j + left)
        found.append(Edit(i, put, j, left, met))
        i, j = i + put + met, j + left + met
    return found


def _meeting(odd: Sequence[int], peer: Sequence[int], i: int, j: int) -> tuple[int, int]:
    """Returns how many calls of each to leave out so that they meet again at the least cost."""
    best: tuple[int, int] | None = None
    for cost in range(1, REACH + 1):
        # A replacement costs one, as an insertion or an omission does.
        choices = [(cost, cost)] if i + cost <= len(odd) and j + cost <= len(peer) else []
        choices += [(0, cost), (cost, 0)]
        for put, left in choices:
            have = min(len(odd) - i - put, len(peer) - j - left)
            need = min(MATCH, have)
            if have < 0 or (have == 0 and put != left):
                continue
            met = _common(odd, peer, i + put, j + left, need) if need else 0
            if met < need:
                continue
            if need >= MATCH or (need and cost == 1 and (put == 0 or left == 0)):
                return put, left
            # Ends are near: little proof. Keep it unless something better turns up.
            if best is None:
                best = put, left
    return best or (min(1, len(odd) - i), min(1, len(peer) - j))


def _common(
    odd: Sequence[int], peer: Sequence[int], i: int, j: int, most: int | None = None
) -> int:
    """Returns how many calls in a row agree from two places on."""
    length = min(len(odd) - i, len(peer) - j)
    if most is not None:
        length = min(length, most)
    count = 0
    while count < length and odd[i + count] == peer[j + count]:
        count += 1
    return count
