"""Whole streams of ranks: all calls of a rank in its order, on all communicators together.

One communicator alone shows who has come to a call. The stream shows what a rank did instead of the
call in which its peers wait for it: it repeated calls, or left some out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import NamedTuple

from ncclscope.engine.repairs.rounds import is_behind_the_loop, may_follow
from ncclscope.engine.sequences.habit import habit_of
from ncclscope.model import Call, Rank, Run
from ncclscope.model.log import newest_of
from ncclscope.model.signature import CREATION_OPS, P2P_OPS

PAST = 512
"""Newest calls of a rank on each communicator that are read."""


Key = tuple[str, Hashable, tuple[str | None, str | None]]


class Repeated(NamedTuple):
    """Calls that a rank posted once more, or one that is new, where its peers went on.

    Attributes:
        call: The first of them.
        calls: Their number.
    """

    call: Call
    calls: int


def repeated(run: Run, number: int, waiting: Call) -> Repeated | None:
    """Return the calls that a rank repeated before it came to the call in which it waits.

    Args:
        run: The run.
        number: The rank.
        waiting: The call.

    Returns:
        None where no peer posted the same up to some call and went on with another, or where it is
        as likely that the rank left out calls.
    """
    own = [call for call in _stream(run.by_rank[number]) if call.position <= waiting.position]
    mine = [_key(run, call) for call in own]
    found: dict[int, set[int]] = {}
    for rank in run.ranks:
        starts = _common_start(own, theirs := _stream(rank)) if rank.rank != number else None
        if starts is None:
            continue
        after = [_key(run, call) for call in theirs]
        both = zip(mine[starts[0] :], after[starts[1] :], strict=False)
        same = next((count for count, (one, other) in enumerate(both) if one != other), None)
        if same is None:
            continue
        place, their = starts[0] + same, starts[1] + same
        until = after[: their + 1]
        has_left = is_behind_the_loop(rank, theirs[their])
        found.setdefault(place, set()).add(_count(run, own, mine, place, until, has_left))
    # The ranks that did the same for the longest show where it left them.
    place = max(found, default=0)
    if place < len(mine) - 1 and (usual := _usual(mine)) is not None:
        place = len(mine) - 1
        count = _count(run, own, mine, place, [*mine[:-1], usual])
        found[place] = {count if count == 1 else 0}  # what it repeats is no round of its own
    counts = found.get(place, {0})
    if len(counts) > 1 or 0 in counts:
        return None
    return Repeated(own[place], min(counts.pop(), len(own) - place))


def _count(
    run: Run,
    own: Sequence[Call],
    mine: Sequence[Key],
    place: int,
    until: Sequence[Key],
    has_left: bool = False,
) -> int:
    """Return how many calls a rank posted more than a peer; 0 where it may have left out as many.

    Args:
        run: The run.
        own: The calls of the rank.
        mine: The same as keys.
        place: The first of them that differs.
        until: The peer's calls up to the one that it posted instead.
        has_left: Whether the peer has left its loop with that call.
    """
    call = own[place]
    if call.site is None or call.op in CREATION_OPS:
        return 0
    if until[-1] not in until[:-1]:
        # Where the peer's call is new, the rank may have left it out, unless it comes after a loop.
        turns = sum(mine[n - 1 : n + 1] == mine[place - 1 : place + 1] for n in range(1, place))
        return _distance_back(mine, place) if has_left and turns > 1 else 0
    left_out = _distance_on(until, mine[place])
    if left_out == inf and call.op not in P2P_OPS and _others_came(run, call):
        return 0
    last = max((k for k, key in enumerate(until[:-1]) if key == until[-1]), default=0)
    new = not may_follow(call, own[last:place]) and _is_new(mine[place:], until)
    back = _distance_back(mine, place) or int(new)
    return back if back < left_out else 0


def _others_came(run: Run, call: Call) -> bool:
    """Return whether other ranks posted a call as well."""
    logs = [rank.logs[call.comm] for rank in run.members(call.comm)]
    return sum(log.calls >= call.seq for log in logs) > 1


def _stream(rank: Rank) -> list[Call]:
    calls = [
        call
        for log in rank.logs.values()
        for call in log.span(max(log.first, log.calls + 1 - PAST), log.calls + 1)
    ]
    calls += [call for sent in rank.p2p.values() for call in newest_of(sent, PAST)]
    return sorted(calls, key=lambda call: call.position)


def _key(run: Run, call: Call) -> Key:
    """Return what a call has in common with those of other rounds and of other ranks."""
    if call.op in P2P_OPS:
        return "", None, call.line  # one side sends where the other one receives
    return run.communicators[call.comm].kind, habit_of(call), call.line


def _common_start(own: Sequence[Call], theirs: Sequence[Call]) -> tuple[int, int] | None:
    """Return the places of the first collective that two ranks share, as far as both are kept."""
    places = {
        (call.comm, call.seq): place for place, call in enumerate(theirs) if call.op not in P2P_OPS
    }
    for place, call in enumerate(own):
        if call.op not in P2P_OPS and (call.comm, call.seq) in places:
            return place, places[call.comm, call.seq]
    return None


def _usual(keys: Sequence[Key]) -> Key | None:
    """Return what followed the calls before the last one, where they were the same; or None."""
    stop = len(keys) - 1
    best, found = 1, None
    for place in range(1, stop):
        length = 0
        while length < place and keys[place - 1 - length] == keys[stop - 1 - length]:
            length += 1
        if length > best:
            best, found = length, keys[place]
    return found if found != keys[-1] else None


def _distance_back(keys: Sequence[Key], place: int) -> int:
    """Return how many calls before a place those from there on were posted; 0 where never."""
    rest = keys[place:]
    for back in range(1, place + 1):
        if all(rest[k] == keys[place - back + k] for k in range(len(rest))):
            return back
    return 0


def _is_new(rest: Sequence[Key], keys: Sequence[Key]) -> int:
    """Return 1 if a rank stopped in a call that none had before, while its peer's next is usual."""
    own, other = rest[0], keys[-1]
    alone = len(rest) == 1 and own not in keys and own[1:] != other[1:]
    return int(alone and other in keys[:-1])


def _distance_on(keys: Sequence[Key], key: Key) -> float:
    """Return how many calls lie between the last call of a rank and another one, as it repeats.

    Args:
        keys: The calls of a rank.
        key: The other call.
    """
    places = [place for place, one in enumerate(keys[:-1]) if one == keys[-1]]
    alike = [place for place in places if place and keys[place - 1] == keys[-2]] or places
    after = [keys[place:] for place in alike]
    return min((rest.index(key) for rest in after if key in rest), default=inf)
