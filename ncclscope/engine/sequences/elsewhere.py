"""Say whether a rank that seems to have posted other calls may be in another round of its loop.

A program repeats itself. A call that was posted before, or one whose size changes from round to
round, does not show by itself which round it belongs to. So a rank that seems to have posted
another size, one more call or one fewer may have left out, or repeated, a whole round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.habit import PAST, known_by
from ncclscope.model import Call
from ncclscope.model.log import CallLog
from ncclscope.model.signature import CREATION_OPS
from ncclscope.wording.differences import Differ

_AHEAD = 256
"""Calls from a difference on that are compared."""

Key = tuple[object, ...]


def may_be_elsewhere(logs: Mapping[int, CallLog], difference: Difference) -> Differ | None:
    """Return why diverging ranks may be in another round of a loop than their peers.

    Args:
        logs: The calls of all members.
        difference: How they differ from their peers.

    Returns:
        None where the calls show that they are in the same round.
    """
    if difference.order or not {*difference.odd[:1], *difference.peers[:1]} <= logs.keys():
        return None
    log, own = logs[difference.peers[0]], logs[difference.odd[0]]
    past = log.span(max(log.first, difference.seq - PAST), difference.seq)
    if difference.replaced:
        return _by_the_call(past, difference)
    mine = own.span(difference.seq, min(own.calls + 1, difference.seq + _AHEAD))
    history, shown = [*map(_exactly, past)], [*map(_exactly, mine)]
    if difference.inserted:
        known = _occurs(history, shown[: difference.first.inserted + difference.first.matched])
        return Differ.ANOTHER_ROUND if known else None
    theirs = log.span(difference.seq, min(log.calls + 1, difference.seq + _AHEAD))
    repeats = _repeats_a_round(history, shown, [*map(_exactly, theirs)])
    return Differ.ANOTHER_ROUND if repeats else None


def _by_the_call(past: Sequence[Call], difference: Difference) -> Differ | None:
    """Return why one call in place of another may belong to another round.

    As long as the ranks wait in it, a call of the loop does not show which round it belongs to.
    Sizes show it only where the line had one size before. In its first round it had none.
    """
    odd, peer = difference.odd_call, difference.peer_call
    if None in (odd.site, peer.site):
        return None
    place, lines = known_by(odd), [*map(known_by, past)]
    own = [one.signature for one, line in zip(past, lines, strict=True) if line == place]
    if place == known_by(peer) and not own:
        is_size = odd.captured == peer.captured and odd.op not in CREATION_OPS
        is_first_round = len({*lines}) == len(lines)
        return Differ.SIZE_IS_NEW if is_size and is_first_round else None
    if difference.first.matched:
        return None
    if place != known_by(peer):
        return Differ.ANOTHER_ROUND if own else None
    once = len(own) == 1 and own[0] != peer.signature  # too few to know that it has one size
    return Differ.ANOTHER_ROUND if once or len({*own}) > 1 else None


def _repeats_a_round(history: Sequence[Key], mine: Sequence[Key], theirs: Sequence[Key]) -> bool:
    """Return whether a rank posted the calls of its last round again, as all ranks have before.

    Args:
        history: The calls that all have posted.
        mine: The rank's calls after them.
        theirs: Those of its peers.
    """
    for length in range(1, len(history) // 2 + 1):
        again = mine[:length]
        if again != history[-length:][: len(again)] or not _agree(mine[length:], theirs):
            continue
        if _occurs(history, [*history[-length:], *again]):
            return True
    return False


def _occurs(history: Sequence[Key], way: Sequence[Key]) -> bool:
    """Return whether calls were posted before, one after the other."""
    last = len(history) - len(way)
    return any(history[start : start + len(way)] == way for start in range(last + 1))


def _agree(one: Sequence[Key], other: Sequence[Key]) -> bool:
    return all(a == b for a, b in zip(one, other, strict=False))


def _exactly(call: Call) -> Key:
    return call.signature, *call.line
