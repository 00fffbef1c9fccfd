"""Replace a difference whose repair leaves ranks waiting by another one whose repair does not.

One call in place of another, behind which nothing is posted, may be that, or a call too many, or
calls left out. Where a rank posted another call instead, its peers wait for nothing else of it. If
they do, on another communicator or in a transfer, it is elsewhere in its program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.processes.motion import Motion, read_motions
from ncclscope.engine.repairs.repair import MOST_RANKS, play, repair_of
from ncclscope.engine.repairs.rounds import distances, is_behind_the_loop, left_out, place_of
from ncclscope.engine.sequences.align import Edit, side_by_side
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.waits.graph import wait_graph


def retold(case: Case, differences: Sequence[Difference]) -> list[Difference]:
    """Return differences, with another in place of each whose repair leaves ranks waiting.

    Args:
        case: The case.
        differences: Its differences.
    """
    found = [_unless_inside(case, one) for one in differences]
    open_ones = [place for place, one in enumerate(found) if _is_open(one)]
    graph = wait_graph(case) if open_ones and len(case.run.ranks) <= MOST_RANKS else None
    if graph is None or not graph.waiting:
        return found
    for place in open_ones:
        rest = [one for one in found if one.odd]
        ranks = frozenset(rank for one in rest for rank in one.odd)
        if (played := play(case, graph, ranks, repair_of(case, rest))) is None or not played.held():
            return found
        for other in _others(case, found[place]):
            tried = [other if one is found[place] else one for one in rest]
            played = play(case, graph, ranks, repair_of(case, tried))
            if played is not None and not played.held():
                found[place] = other
                break
    return found


def _unless_inside(case: Case, difference: Difference) -> Difference:
    """Return a difference as one call in place of another where no rank has left the loop.

    The handler of a signal, for instance, posts calls of its own in the middle of a round.
    """
    rounds = difference.rounds
    if rounds is None or not rounds.left or case.run.snapshot is None or not difference.odd:
        return difference
    motions = read_motions(case.run.snapshot)
    here = place_of(difference.peer_call.user_site or difference.peer_call.site)
    if here is None or not all(_is_inside(motions.get(rank), *here) for rank in difference.odd):
        return difference
    edit, logs = Edit(0, 1, 0, 1, 0), case.logs(difference.comm.key)
    both = logs[difference.odd[0]], logs[difference.peers[0]]
    return replace(
        difference,
        edits=(edit,),
        aligned=tuple(side_by_side(*both, difference.seq, [edit])),
        other=difference.first,
        rounds=None,
    )


def _is_inside(motion: Motion | None, file: str, function: str, line: int) -> bool:
    """Return whether a rank, below any function that it calls, is in the loop around a line."""
    return motion is not None and any(
        (frame.base, frame.name) == (file, function)
        and frame.loop
        and frame.loop[0] <= line <= frame.loop[-1]
        for frame in motion.frames
    )


def _is_open(difference: Difference) -> bool:
    first = difference.first
    if difference.comm.creates_groups:
        return False
    alone = len(difference.edits) == 1 and difference.order is None and not difference.item
    return difference.decided and difference.replaced and not first.matched and alone


def _others(case: Case, difference: Difference) -> list[Difference]:
    """Return what else a difference may be, the nearer in the loop first."""
    logs = case.logs(difference.comm.key)
    odd = max((logs[one] for one in difference.odd), key=lambda log: log.calls)
    peer = max((logs[one] for one in difference.peers), key=lambda log: log.calls)
    rounds = left_out(odd, peer, difference.seq)
    if (
        rounds is not None
        and rounds.left
        and not is_behind_the_loop(case.run.by_rank[difference.odd[0]], difference.odd_call)
    ):
        rounds = None
    back, forward = distances(odd, peer, difference.seq)
    extra = Edit(0, difference.first.inserted, 0, 0, 0)
    if rounds is not None:
        missing = Edit(0, 0, 0, rounds.calls, 0)
    else:
        missing = Edit(0, 0, 0, forward or difference.first.deleted, 0)
    goes_on = rounds is not None and not rounds.rather_repeated
    is_behind = rounds is None and forward > 0 and not 0 < back < forward
    found = []
    for edit in (missing, extra) if goes_on or is_behind else (extra, missing):
        found.append(
            replace(
                difference,
                edits=(edit,),
                aligned=tuple(side_by_side(odd, peer, difference.seq, [edit])),
                other=difference.first,
                rounds=rounds if edit.deleted else None,
            )
        )
    return found
