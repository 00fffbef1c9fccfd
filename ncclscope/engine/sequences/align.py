"""Find where the sequences of one communicator's members diverge, and edit one into another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

import numpy as np

from ncclscope.model import Call, Communicator
from ncclscope.model.log import CallLog
from ncclscope.model.memory import ListLog
from ncclscope.model.signature import stretch
from ncclscope.model.windows import PlacedLog, best_shift

LOOKAHEAD = 4096
"""Calls after the first difference that are read to find the kind of difference."""


@dataclass(frozen=True)
class Divergence:
    """The first call on a communicator in which its members differ.

    Attributes:
        comm: The communicator.
        seq: Number of that call.
        exact: False where the call itself has been overwritten on some rank, so that the
            sequences diverged at ``seq`` or before.
        groups: Ranks by the call they posted there, largest group first.
        absent: Ranks that have not posted as many calls.
        signatures: Signature of each group's call, in the groups' order.
    """

    comm: Communicator
    seq: int
    exact: bool
    groups: tuple[tuple[int, ...], ...]
    absent: tuple[int, ...]
    signatures: tuple[int, ...]

    @property
    def majority(self) -> tuple[int, ...]:
        """The ranks that are more than all others of the communicator; empty when none are."""
        largest = self.groups[0]
        others = sum(len(group) for group in self.groups[1:])
        return largest if len(largest) > others else ()


def agree(one: CallLog, other: CallLog, seq: int) -> bool:
    """Return whether two logs hold the same calls, as far as both are kept, up to ``seq``.

    Args:
        one: Calls of a rank on a communicator.
        other: Calls of another rank on it.
        seq: Number of the last call that counts.
    """
    if one.rooted and other.rooted:
        return one.fingerprint(seq) == other.fingerprint(seq)
    start = max(one.first, other.first)
    if start > seq:
        return True
    if one.signatures(start, start + 1) != other.signatures(start, start + 1):
        return False
    length = seq - start
    return stretch(one.fingerprint(start), one.fingerprint(seq), length) == stretch(
        other.fingerprint(start), other.fingerprint(seq), length
    )


def first_difference(one: CallLog, other: CallLog) -> tuple[int, bool] | None:
    """Find the first call in which two logs differ, by bisection over the running hash.

    Returns:
        Its number, and whether it is exact: False where the logs differ in overwritten calls.
        None when they agree as far as both go.
    """
    low, high = max(one.first, other.first), min(one.calls, other.calls)
    if high < low or agree(one, other, high):
        return None
    if not agree(one, other, low):
        # Without the calls before it, the difference may be older than this call.
        rooted = one.rooted and other.rooted
        exact = rooted and (low == 1 or agree(one, other, low - 1))
        return low, exact
    # Agreed at low, differ at high. Hashes are stored at multiples of 1024: probe there first.
    while high - low > 1:
        middle = (low + high) // 2
        if high - low > 2048:
            middle = middle // 1024 * 1024
        if agree(one, other, middle):
            low = middle
        else:
            high = middle
    return high, True


def find_divergence(comm: Communicator, logs: Mapping[int, CallLog]) -> Divergence | None:
    """Find the first call on a communicator in which its members differ.

    Args:
        comm: The communicator.
        logs: Each member's calls, by global rank.

    Returns:
        None when all agree as far as they go.
    """
    if len(logs) < 2:
        return None
    reference = max(logs.values(), key=lambda log: (log.calls, -log.first))
    seq, exact = 0, True
    for log in logs.values():
        if log is reference:
            continue
        found = first_difference(reference, log)
        if found is not None and (not seq or found[0] < seq):
            seq, exact = found
    if not seq:
        return None
    posted: dict[int, list[int]] = {}
    absent = []
    for rank, log in sorted(logs.items()):
        if log.first <= seq <= log.calls:
            posted.setdefault(_at(reference, log, seq, exact), []).append(rank)
        else:
            absent.append(rank)
    order = sorted(posted, key=lambda signature: (-len(posted[signature]), posted[signature]))
    return Divergence(
        comm=comm,
        seq=seq,
        exact=exact,
        groups=tuple(tuple(posted[signature]) for signature in order),
        absent=tuple(absent),
        signatures=tuple(order),
    )


def _at(reference: CallLog, log: CallLog, seq: int, exact: bool) -> int:
    """Return the key that groups ranks at ``seq``: the call, or the hash of all calls up to it."""
    if exact or not log.rooted:
        return log.signatures(seq, seq + 1)[0]
    return log.fingerprint(seq)


def compare(odd: CallLog, peer: CallLog, seq: int) -> list[Edit]:
    """Return the edits from ``peer`` to ``odd`` from call ``seq`` on, relative to it.

    Args:
        odd: The diverging rank's calls.
        peer: A peer's calls.
        seq: The first differing call.
    """
    return edits(
        odd.signatures(seq, min(odd.calls + 1, seq + LOOKAHEAD)),
        peer.signatures(seq, min(peer.calls + 1, seq + LOOKAHEAD)),
    )


def side_by_side(
    odd: CallLog, peer: CallLog, seq: int, found: Sequence[Edit], around: int = 3
) -> list[tuple[Call | None, Call | None]]:
    """Return pairs of a peer's and the diverging rank's calls around the first difference.

    Args:
        odd: The diverging rank's calls.
        peer: A peer's calls.
        seq: The first differing call.
        found: The edits from there on.
        around: Number of pairs before that call, and after it.

    Returns:
        Pairs of equal or replaced calls; where one has no counterpart, None in its place.
    """
    before = range(max(odd.first, peer.first, seq - around), seq)
    pairs: list[tuple[Call | None, Call | None]] = [
        (peer.call(number), odd.call(number)) for number in before
    ]
    i = j = seq
    steps = list(found)
    odd_end, peer_end = odd.calls + 1, peer.calls + 1
    end = len(pairs) + 1 + around
    while len(pairs) < end and (i <= odd.calls or j <= peer.calls):
        if steps and (i, j) == (seq + steps[0].start, seq + steps[0].peer_start):
            edit = steps.pop(0)
            for number in range(max(edit.inserted, edit.deleted)):
                # Of a deleted block, a peer may have posted only the first calls.
                theirs = peer.call(j + number) if number < min(edit.deleted, peer_end - j) else None
                own = odd.call(i + number) if number < min(edit.inserted, odd_end - i) else None
                if theirs or own:
                    pairs.append((theirs, own))
            i, j = i + edit.inserted, j + edit.deleted
        else:
            theirs = peer.call(j) if j <= peer.calls else None
            own = odd.call(i) if i <= odd.calls else None
            pairs.append((theirs, own))
            i, j = i + 1, j + 1
    return pairs[:end]


def align_windows(logs: Mapping[int, CallLog]) -> dict[int, CallLog]:
    """Give logs with unknown first numbers common numbers, from their contents.

    Each log holds the newest calls of a rank, with an unknown number of earlier ones. The shift
    between two logs is the one under which most calls agree and fewest differ. Logs that got
    common numbers when they were read keep them: the reader compared all calls of the ranks, not
    only those on one communicator.

    Returns:
        Logs from the latest first call on; call 1 is the same call in all of them.
    """
    if all(log.anchored for log in logs.values()) or all(
        isinstance(log, PlacedLog) for log in logs.values()
    ):
        return dict(logs)
    contents = {
        rank: np.array(log.signatures(log.first, log.calls + 1), np.uint64)
        for rank, log in logs.items()
    }
    reference = max(contents.values(), key=len)
    shifts = {rank: best_shift(reference, content) for rank, content in contents.items()}
    starts = {rank: shift.start if shift else 0 for rank, shift in shifts.items()}
    start = max(starts.values())
    aligned: dict[int, CallLog] = {}
    for rank, log in logs.items():
        kept = log.span(log.first + start - starts[rank], log.calls + 1)
        numbered = [replace(call, seq=seq) for seq, call in enumerate(kept, 1)]
        aligned[rank] = ListLog(log.communicator, numbered, anchored=False)
    return aligned


MOST = 400
"""Differing calls after which two sequences are taken to have nothing in common."""


OVER = 0.6
"""Cost of a call beyond the end of the other sequence, where an edit costs 1.

Between 0.5 and 1: a rank that skipped every second of 34 calls must not look like one that
replaced eight and is 17 behind, and a rank's lead must not be explained by deletions.
"""


FURTHER = 0.25
"""Cost of each further call of a block that is deleted, or inserted, as a whole."""
REORDERED = 1.5
"""Cost of two blocks in opposite order: more than a deletion, less than a deletion and an
insertion."""
LONGEST_BLOCK = 256
"""Maximum length, in calls, of a block that is searched for."""


class Edit(NamedTuple):
    """Replace ``peer[peer_start:peer_start + deleted]`` with ``odd[start:start + inserted]``.

    Attributes:
        start: First differing call of the diverging sequence.
        inserted: Number of inserted calls, which the peer does not have.
        peer_start: First differing call of the peer.
        deleted: Number of deleted calls, which only the peer has.
        matched: Number of matched calls after it, until the next edit or an end.
    """

    start: int
    inserted: int
    peer_start: int
    deleted: int
    matched: int


def edits(odd: Sequence[int], peer: Sequence[int]) -> list[Edit]:
    """Return the fewest edits that turn ``peer`` into ``odd``, both being signatures.

    A deletion, an insertion and a replacement cost 1 each: Levenshtein's distance, found by
    Ukkonen's furthest-reaching points, so that time grows with the difference and not with the
    product of the lengths. Calls beyond the end of the other sequence are not edits, since a rank
    that is ahead has not diverged; but a solution with fewer of them may cost a few more edits,
    see OVER. A last edit without matched calls after it shows only that one call replaces
    another, and is returned as such.
    """
    found = grouped(_shortest(odd, peer))
    if found and not found[-1].matched:
        last = found[-1]
        found[-1] = last._replace(inserted=max(last.inserted, 1), deleted=max(last.deleted, 1))
    return found


def grouped(moves: str) -> list[Edit]:
    """Return the edits of a path.

    ``=`` matches, ``+`` inserts a call of ``odd``, ``-`` deletes one of ``peer``, ``*`` replaces.
    """
    found: list[Edit] = []
    x = y = 0
    for part in re.findall(r"=+|[^=]+", moves):
        if part[0] != "=":
            inserted, deleted = len(part) - part.count("-"), len(part) - part.count("+")
            found.append(Edit(x, inserted, y, deleted, 0))
        else:
            inserted = deleted = len(part)
            if found:
                found[-1] = found[-1]._replace(matched=len(part))
        x, y = x + inserted, y + deleted
    return found


def _shortest(odd: Sequence[int], peer: Sequence[int]) -> str:
    """Return the moves of the cheapest path through both sequences; see :func:`grouped`."""
    n, m = len(odd), len(peer)
    found: list[dict[int, int]] = []
    best: tuple[float, int, int] | None = None
    for cost, level in zip(range(min(n + m, MOST) + 1), levels(odd, peer), strict=False):
        if best is not None and cost >= best[0]:
            break
        found.append(level)
        for diagonal, x in level.items():
            y = x - diagonal
            if x == n or y == m:
                over = cost + OVER * ((n - x) + (m - y))
                if best is None or over < best[0]:
                    best = (over, cost, diagonal)
    if best is None:
        return "*"
    _, cost, diagonal = best
    return way_back(found[: cost + 1], diagonal)


def levels(
    odd: Sequence[int], peer: Sequence[int], *, replacing: bool = True
) -> Iterator[dict[int, int]]:
    """Yield the furthest points in ``odd`` that 0, 1, 2 and more edits reach, by diagonal.

    Args:
        odd: Sequence to reach, as numbers of calls.
        peer: Sequence to start from.
        replacing: Whether a replacement is one edit; otherwise it is a deletion and an insertion.
    """
    n, m = len(odd), len(peer)
    level: dict[int, int] = {}
    for cost in count():
        before, level = level, {}
        for diagonal in range(-cost, cost + 1, 1 if replacing else 2):
            x = 0 if not cost else _best_step(before, diagonal)[0]
            y = x - diagonal
            if x < 0 or x > n or y < 0 or y > m:
                continue
            while x < n and y < m and odd[x] == peer[y]:
                x, y = x + 1, y + 1
            level[diagonal] = x
        yield level


def _best_step(before: dict[int, int], diagonal: int) -> tuple[int, str]:
    """Return the furthest point of a diagonal after one more edit, and that edit."""
    return max(
        (before.get(diagonal, -2) + 1, "*"),
        (before.get(diagonal - 1, -2) + 1, "+"),
        (before.get(diagonal + 1, -1), "-"),
    )


def way_back(found: Sequence[dict[int, int]], diagonal: int) -> str:
    """Return the moves that lead to a diagonal of the last level; see :func:`grouped`."""
    moves: list[str] = []
    x = found[-1][diagonal]
    for before in reversed(found[:-1]):
        start, move = _best_step(before, diagonal)
        moves += ["=" * (x - start), move]
        diagonal += {"*": 0, "+": -1, "-": 1}[move]
        x = before[diagonal]
    moves.append("=" * x)
    return "".join(reversed(moves))


def cost_of(found: Sequence[Edit], odd: Sequence[int], peer: Sequence[int]) -> float:
    """Return the cost of edits, including calls beyond the end of the other sequence.

    Args:
        found: The edits.
        odd: Signatures of the diverging sequence.
        peer: Signatures of the peer's.
    """
    surplus = sum(edit.inserted - edit.deleted for edit in found)
    cost = sum(max(edit.inserted, edit.deleted) for edit in found)
    return cost + OVER * abs(len(odd) - len(peer) - surplus)


def rival_of(
    found: Edit, odd: Sequence[object], peer: Sequence[object], *, is_order: bool = False
) -> Edit | None:
    """Return an edit of another kind that explains the same calls, and concerns no more of them.

    Args:
        found: The edit at the first differing call.
        odd: Calls of the diverging sequence, from that call on.
        peer: Those of the peer, and those that it is expected to post after them.
        is_order: Whether the edit is two blocks in opposite order.
    """
    kind = "order" if is_order else _kind_of(found)
    if found.start or found.peer_start or kind == "replaced":
        return None  # where as many calls follow on both sides, another edit leaves some over
    for size in range(1, max(found.inserted, found.deleted) + 1):
        sides = ((1, 1), (0, size), (size, 0)) if size == 1 else ((0, size), (size, 0))
        for inserted, deleted in sides:
            mine, theirs = odd[inserted:], peer[deleted:]
            matched = min(len(mine), len(theirs))
            one = Edit(0, inserted, 0, deleted, matched)
            if matched and _kind_of(one) != kind and mine[:matched] == theirs[:matched]:
                return one
    return None


def _kind_of(edit: Edit) -> str:
    if edit.inserted and edit.deleted:
        return "replaced"
    return "inserted" if edit.inserted else "deleted"


def block_edits(odd: Sequence[int], peer: Sequence[int]) -> list[tuple[float, Edit]]:
    """Return the shortest deleted block and the shortest inserted block, each with its cost.

    Deleting a block of four calls is one edit, not four. After it, both sequences must agree to
    their ends, on at least as many calls as the block has.

    Returns:
        The cheaper one first; empty where no block makes the sequences agree.
    """
    found: list[tuple[float, Edit]] = []
    for way in (0, 1):
        for size in range(1, LONGEST_BLOCK + 1):
            inserted, deleted = (size, 0) if way else (0, size)
            mine, theirs = odd[inserted:], peer[deleted:]
            matched = min(len(mine), len(theirs))
            if matched < max(2, size):
                break
            if mine[:matched] == theirs[:matched]:
                cost = 1 + FURTHER * (size - 1) + OVER * abs(len(mine) - len(theirs))
                found.append((cost, Edit(0, inserted, 0, deleted, matched)))
                break
    return sorted(found)


def reordered(odd: Sequence[int], peer: Sequence[int]) -> tuple[float, tuple[int, int]] | None:
    """Find two neighbouring blocks in opposite order.

    Returns:
        The cost, and the lengths of the first block of ``peer`` and of the first block of ``odd``;
        None where the sequences do not agree to their ends after both blocks.
    """
    end = min(len(odd), len(peer))
    for both in range(2, min(end, LONGEST_BLOCK) + 1):
        if odd[both:end] != peer[both:end]:
            continue
        for first in range(1, both):
            if odd[: both - first] == peer[first:both] and odd[both - first : both] == peer[:first]:
                return REORDERED + OVER * abs(len(odd) - len(peer)), (first, both - first)
    return None
