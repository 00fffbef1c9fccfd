"""Explain how one rank's calls differ from a peer's, in the fewest and largest edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ncclscope.engine.repairs.rounds import (
    PAST,
    LeftOut,
    equal_rounds,
    expected,
    has_another_parameter,
    is_behind_the_loop,
    left_out,
    round_shift,
    went_a_known_way,
)
from ncclscope.engine.sequences.align import (
    FURTHER,
    LOOKAHEAD,
    Edit,
    block_edits,
    compare,
    cost_of,
    reordered,
    rival_of,
)
from ncclscope.engine.sequences.habit import (
    came_from_there,
    follows,
    habit_of,
    is_resized,
    skipped_block,
)
from ncclscope.engine.sequences.replays import block_at, replay_edits
from ncclscope.model import Communicator, Rank
from ncclscope.model.log import CallLog
from ncclscope.model.signature import BARRIERS

Side = tuple[Rank, CallLog]
ONE_FOR_ANOTHER = Edit(0, 1, 0, 1, 0)


@dataclass(frozen=True)
class EditExplanation:
    """How one rank's calls differ from a peer's.

    Attributes:
        edits: The deleted, inserted and replaced calls, at least one edit.
        order: Where two neighbouring blocks are in opposite order: the length of the peer's first
            block, and of the rank's first block.
        other: Another, less likely edit that explains the same calls; None without one.
        rival: Another edit of no more calls, beside which it is not certain; None without one.
        rounds: The calls that the rank left out of its rounds; None where it is not known to.
    """

    edits: Sequence[Edit]
    order: tuple[int, int] | None = None
    other: Edit | None = None
    rival: Edit | None = None
    rounds: LeftOut | None = None


def explain(comm: Communicator, odd: Side, peer: Side, seq: int) -> EditExplanation:
    """Return how one rank's calls differ from a peer's.

    Args:
        comm: The communicator.
        odd: The diverging rank and its calls.
        peer: A peer and its calls.
        seq: The first differing call.
    """
    found = _with_rival(_explain(comm, odd, peer, seq), odd[1], peer[1], seq)
    first = found.edits[0]
    if found.rounds is None and not first.inserted and not first.start:
        equal = equal_rounds(peer[1], seq, first.deleted)
        rounds = LeftOut(first.deleted, 1 + equal, left=False)
        return replace(found, rounds=rounds) if equal else found
    return found


def _with_rival(found: EditExplanation, odd: CallLog, peer: CallLog, seq: int) -> EditExplanation:
    """Return an explanation with another edit of no more calls, if one explains as much."""
    if found.other is not None or len(found.edits) > 1 or found.edits[0] == ONE_FOR_ANOTHER:
        return found
    mine = odd.span(seq, min(odd.calls + 1, seq + LOOKAHEAD))
    theirs = expected(peer, seq, len(mine) + found.edits[0].deleted)
    if not mine or not theirs or mine[0].replay is not None:
        return found
    start = max(odd.first, peer.first, seq - PAST)
    alike = odd.sites(start, seq) == peer.sites(start, seq)
    own, due = ([(one.signature, alike and one.line) for one in some] for some in (mine, theirs))
    is_order = found.order is not None
    return replace(found, rival=rival_of(found.edits[0], own, due, is_order=is_order))


def _explain(comm: Communicator, odd: Side, peer: Side, seq: int) -> EditExplanation:
    whole = replay_edits(odd, peer, seq)
    found = whole or compare(odd[1], peer[1], seq)
    if not found:  # they differ in overwritten calls
        return EditExplanation([ONE_FOR_ANOTHER])
    if comm.creates_groups:
        # The same groups in another order: no call is missing.
        same = len(found) > 1 and not sum(edit.inserted - edit.deleted for edit in found)
        return EditExplanation([ONE_FOR_ANOTHER] if same else found)
    parts = [_signatures(log, seq) for _, log in (odd, peer)]
    usual = cost_of(found, *parts)
    # One of two graphs of different lengths lacks calls: nothing is in the opposite order.
    is_shorter = bool(whole) and whole[0].inserted != whole[0].deleted
    order = None if is_shorter else _reordered(odd, peer, seq, parts)
    if order is None and (threads := _by_threads(odd[1], peer[1], seq)) is not None:
        both = sum(threads)
        matched = max(min(map(len, parts)) - both, 0)
        edit = Edit(0, both, 0, both, matched)
        return EditExplanation([edit], order=threads, other=found[0])
    blocks = [] if whole else block_edits(*parts)
    best = min([usual, *(cost for cost, _ in blocks)])
    rounds = None if whole or len(parts[0]) < 2 else left_out(odd[1], peer[1], seq)
    if rounds is not None and not rounds.left and not rounds.rather_repeated:
        # It left out calls, and may have come round to them again while its peers waited.
        price = 1 + FURTHER * (rounds.calls - 1)
        shown = min(len(parts[0]), max(len(parts[1]) - rounds.calls, 0))
        missing = Edit(0, 0, 0, rounds.calls, shown)
        if price < best and (order is None or (price <= order[0] and rounds.calls > 1)):
            return EditExplanation([missing], rounds=rounds)
        if price == best == usual and not found[0].deleted:
            return EditExplanation(found, other=missing)
    else:
        missing = None
    if not whole and found[0].inserted and found[0].deleted:
        shift = round_shift(odd[1], peer[1], seq)
        if shift > 0:
            edit = Edit(0, 0, 0, shift, 0)
            rounds = LeftOut(shift, 1, left=False)
            return EditExplanation([edit], other=ONE_FOR_ANOTHER, rounds=rounds)
        if shift:
            shown = min(-shift, len(parts[0]))
            return EditExplanation([Edit(0, shown, 0, 0, 0)], other=ONE_FOR_ANOTHER)
    if order is not None and (whole or order[0] < best):
        both = sum(order[1])
        matched = min(map(len, parts)) - both
        found = [Edit(0, both, 0, both, max(matched, 0))]
        return EditExplanation(found, order=order[1], other=None if matched > 0 else missing)
    if not whole and len(found) == 1 and _is_a_known_way(found[0], odd[1], peer[1], seq):
        return EditExplanation([Edit(0, len(parts[0]), 0, 0, 0)], other=found[0])
    if blocks and blocks[0][0] < usual:
        return EditExplanation([blocks[0][1]], other=blocks[1][1] if blocks[1:] else None)
    if len(found) == 1 and found[0][:4] == (0, 1, 0, 0) and is_resized(odd[1], peer[1], seq):
        return EditExplanation([ONE_FOR_ANOTHER], other=found[0])
    first = found[0]
    if not whole and len(found) == 1 and first.inserted and first.deleted and not first.matched:
        # All ranks stopped here. The diverging rank may have posted its peers' next call.
        posted, alone = odd[1].call(seq), first == ONE_FOR_ANOTHER
        rounds = left_out(odd[1], peer[1], seq)
        if rounds is not None and (alone or rounds.left):
            missing = Edit(0, 0, 0, rounds.calls, 0)
            # A call that is new may be another branch of the loop, too.
            is_new = rounds.left and not rounds.usual and posted.op not in BARRIERS
            if is_new and not is_behind_the_loop(odd[0], posted):
                return EditExplanation(found, other=missing)
            if rounds.rather_repeated:
                return EditExplanation([Edit(0, 1, 0, 0, 0)], other=missing)
            return EditExplanation([missing], other=first if is_new else None, rounds=rounds)
        past = peer[1].span(max(peer[1].first, seq - PAST), seq)
        if has_another_parameter(posted, peer[1].call(seq), past):
            return EditExplanation(found)
        if not alone or not came_from_there(peer[1], seq, posted):
            return EditExplanation(found)
        if follows(peer[1], seq + 1, posted, peer[1].call(seq)) == habit_of(posted):
            return EditExplanation([Edit(0, 0, 0, 1, 0)])
        if count := skipped_block(peer[1], seq, posted):
            return EditExplanation([Edit(0, 0, 0, count, 0)])
    return EditExplanation(found)


def _signatures(log: CallLog, seq: int) -> Sequence[int]:
    stop = min(log.calls + 1, seq + LOOKAHEAD)
    return list(log.signatures(seq, stop)) if seq < stop else []


def _reordered(
    odd: Side, peer: Side, seq: int, parts: Sequence[Sequence[int]]
) -> tuple[float, tuple[int, int]] | None:
    """Find two neighbouring blocks in opposite order, within one replay of a graph at most.

    Each further replay repeats the opposite order.
    """
    blocks = [block_at(*side, seq) for side in (odd, peer)]
    ends = {block.seq + block.calls - seq for block in blocks if block is not None}
    found = reordered(*(part[: min(ends)] for part in parts)) if ends else reordered(*parts)
    return found if found is None or _on_same_lines(odd[1], peer[1], seq, found[1]) else None


def _is_a_known_way(edit: Edit, odd: CallLog, peer: CallLog, seq: int) -> bool:
    """Return whether a rank that seems to have left out calls repeated some of a round instead."""
    skipped = not edit.start and not edit.inserted and edit.matched == odd.calls + 1 - seq
    return skipped and edit.matched <= edit.deleted and went_a_known_way(odd, peer, seq)


def _by_threads(odd: CallLog, peer: CallLog, seq: int) -> tuple[int, int] | None:
    """Find calls of two threads in opposite order, of which the peers have not posted all.

    Each thread alone posts what it does in each round, so that no call is missing or too many.
    """
    mine = odd.span(seq, min(odd.calls + 1, seq + LOOKAHEAD))
    if len({call.thread for call in mine}) < 2:
        return None
    theirs = expected(peer, seq, len(mine))
    if len(theirs) < len(mine):
        return None
    own, due = (
        [(call.signature, call.site) for call in mine],
        [(call.signature, call.site) for call in theirs],
    )
    for first in range(1, len(mine)):
        threads = [{call.thread for call in part} for part in (mine[:-first], mine[-first:])]
        if own == [*due[first:], *due[:first]] and threads[0].isdisjoint(threads[1]):
            return first, len(mine) - first
    return None


def _on_same_lines(odd: CallLog, peer: CallLog, seq: int, order: tuple[int, int]) -> bool:
    """Return whether calls in opposite order come from the same lines, as those before them do."""
    first, rest = order
    start = max(odd.first, peer.first, seq - first - rest)
    if odd.sites(start, seq) != peer.sites(start, seq):
        return True  # the rank has lines of its own
    mine, theirs = (list(log.sites(seq, seq + first + rest)) for log in (odd, peer))
    return mine == [*theirs[first:], *theirs[:first]]
