"""Find where the sequences of one communicator's members diverge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ncclscope.engine.sequences.edits import Edit, edits
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
