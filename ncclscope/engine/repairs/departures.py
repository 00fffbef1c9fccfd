"""Say where a rank departs from the rounds of its own program.

One communicator shows who has come to a call. The whole stream of a thread, on all communicators
and with its transfers, shows what it did instead: in each round before, other calls came here. So
where ranks wait for each other, and no majority decides, a rank that departs from its rounds is
the suspect, and one that keeps to them is not.

A call that is new is no departure: a program leaves its loop once, and its first evaluation comes
after many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from ncclscope.engine.repairs.rounds import EVEN
from ncclscope.model import Call, Rank, Run
from ncclscope.model.log import newest_of
from ncclscope.model.signature import CREATION_OPS, P2P_OPS

PAST = 384
"""Newest calls of a rank on each communicator that are searched for rounds."""
STREAM = 1024
"""The same of all communicators together."""
NEWEST = 48
"""Newest calls of a thread among which a departure is searched."""
EQUAL = 6
"""Calls before a departure that have to repeat those of the round before, and at least a round of
them: two short rounds may be equal by chance."""
RARELY = 4
"""Times as many calls as those of the same lines that do not repeat have to, such as the first."""

_KeyOf = Callable[[Call], tuple[object, ...]]


@dataclass(frozen=True)
class Departure:
    """Where a rank departs from its rounds.

    Where it posted one call of the round on another communicator, or to another peer, the expected
    call is left out and the other one is extra. Where it posted one before its turn, from a line of
    its own, those that come before it are left out so far.

    Attributes:
        rank: Global rank.
        call: The first call that it posted instead of the expected one.
        left_out: Calls of the round before that it did not post again, in order.
        extra: Calls that it posted once more, in order.
        is_early: Whether its call comes in the round behind those left out, from another line.
        by_line: Whether transfers with one peer differ by their lines alone.
    """

    rank: int
    call: Call
    left_out: tuple[Call, ...] = ()
    extra: tuple[Call, ...] = ()
    is_early: bool = False
    by_line: bool = False

    @property
    def is_replaced(self) -> bool:
        """Whether one call went to another communicator, or to another peer."""
        return bool(self.left_out and self.extra)

    @property
    def likeness(self) -> Hashable:
        """What ranks have in common that depart in the same way, each in groups of its own."""
        edited = self.left_out or self.extra
        way = bool(self.left_out), bool(self.extra)
        return *way, *((one.op, one.line) for one in edited)


def departures(run: Run, ranks: Iterable[int]) -> dict[int, Departure]:
    """Return where ranks depart from their rounds, the latest place of all threads.

    Ranks are left out that keep to their rounds, have none, or posted a call that is in none of
    them. So are those whose peers all depart at the same call, and a majority that departs alike.

    Args:
        run: The run.
        ranks: Global ranks.
    """
    streams: dict[int, list[list[Call]]] = {}

    def threads_of(number: int) -> list[list[Call]]:
        if number not in streams:
            streams[number] = _by_thread(_stream(run.by_rank[number]))
        return streams[number]

    def is_shared(one: Departure) -> bool:
        """Return whether all other members posted the same call, and depart there."""
        call = one.call
        if call.op in P2P_OPS:
            return False
        others = [rank.rank for rank in run.members(call.comm) if rank.rank != one.rank]
        return bool(others) and all(
            any(_departs_at(calls, call) for calls in threads_of(other)) for other in others
        )

    asked, found = list(ranks), {}
    for rank in asked:
        own = []
        for calls in threads_of(rank):
            one = _latest(rank, calls)
            if one is None or is_shared(one):
                continue
            key_of = _key_by_line if one.by_line else _key
            way = _way(run, calls, one, key_of)
            same = [
                other
                for other in asked
                if any(_goes(run, way, some, key_of) for some in threads_of(other))
            ]
            if 2 * len(same) <= len(asked):
                own.append(one)
        if own:
            found[rank] = max(own, key=lambda one: one.call.position)
    return found


def keeps_to_rounds(rank: Rank) -> bool:
    """Return whether the newest call of a rank is the one that its rounds predict.

    Args:
        rank: The rank.
    """
    return _predicted(_newest_thread(_stream(rank))) is not None


def begun_round(rank: Rank) -> Sequence[Call]:
    """Return the calls that a rank has posted of its round, without the newest.

    Args:
        rank: The rank.

    Returns:
        None of them where its rounds do not predict the newest call, where that begins a round, and
        where the first round is not kept.
    """
    stream = _stream(rank)
    calls = _newest_thread(stream)
    found = _predicted(calls)
    if found is None:
        return ()
    place, (length, equal) = len(calls) - 1, found
    is_cut = equal + length == place and bool(rank.lost or len(stream) == STREAM)
    return () if is_cut else calls[place - equal % length : place]


def _newest_thread(stream: Sequence[Call]) -> list[Call]:
    """Return the calls of the thread that posted the newest one."""
    return [call for call in stream if call.thread == stream[-1].thread]


def _predicted(calls: Sequence[Call]) -> tuple[int, int] | None:
    """Return the round before a thread's newest call, which predicts that; see :func:`_round`."""
    keys, place = [_key(call) for call in calls], len(calls) - 1
    if not keys:
        return None
    length, equal = _round(keys, place)
    is_predicted = _is_rhythm(keys, place, length, equal) and keys[place] == keys[place - length]
    return (length, equal) if is_predicted and not _is_unlike(calls) else None


def _is_unlike(calls: Sequence[Call]) -> bool:
    """Return whether the lines of a thread's transfers predict another newest call."""
    keys, place = [_key_by_line(call) for call in calls], len(calls) - 1
    length, equal = _round(keys, place)
    return _is_rhythm(keys, place, length, equal) and keys[place] != keys[place - length]


def goes_a_known_way(rank: Rank) -> bool | None:
    """Return whether the newest call of a rank followed the one before it earlier already.

    Returns:
        None where the newest call is new.
    """
    keys = [_key(call) for call in _newest_thread(_stream(rank))]
    if not keys or keys[-1] not in keys[:-1]:
        return None
    return any(keys[n : n + 2] == keys[-2:] for n in range(len(keys) - 2))


def _departs_at(calls: Sequence[Call], call: Call) -> bool:
    """Return whether a thread posted a call of its peer, and departs from its rounds there."""
    for place, own in enumerate(calls):
        if (own.comm, own.seq) == (call.comm, call.seq) and own.op not in P2P_OPS:
            keys = [_key(one) for one in calls]
            return _key(call) == keys[place] and _edit_at(keys, place) is not None
    return False


def _stream(rank: Rank) -> list[Call]:
    calls = [
        call
        for log in rank.logs.values()
        for call in log.span(max(log.first, log.calls + 1 - PAST), log.calls + 1)
        if call.op not in CREATION_OPS
    ]
    calls += [call for sent in rank.p2p.values() for call in newest_of(sent, PAST)]
    return sorted(calls, key=lambda call: call.position)[-STREAM:]


def _by_thread(calls: Sequence[Call]) -> list[list[Call]]:
    threads = sorted({call.thread for call in calls})
    return [[call for call in calls if call.thread == thread] for thread in threads]


def _way(run: Run, calls: Sequence[Call], one: Departure, key_of: _KeyOf) -> list[Hashable]:
    """Return the round before a departure and the call after it, by the roles of communicators."""
    place = next(n for n, call in enumerate(calls) if call is one.call)
    length, _ = _round([key_of(call) for call in calls], place)
    return [_by_role(run, call, key_of) for call in calls[place - length : place + 1]]


def _goes(run: Run, way: Sequence[Hashable], calls: Sequence[Call], key_of: _KeyOf) -> bool:
    """Return whether a thread posted some calls in a row, in groups of the same roles."""
    keys = [_by_role(run, call, key_of) for call in calls]
    return any(keys[start : start + len(way)] == way for start in range(len(keys)))


def _by_role(run: Run, call: Call, key_of: _KeyOf) -> Hashable:
    return run.communicators[call.comm].kind, *key_of(call)[1:]


def _latest(number: int, calls: Sequence[Call]) -> Departure | None:
    """Return the latest departure of a thread; by lines, where transfers with a peer look alike."""
    found = _latest_by(_key, number, calls)
    if found is None and (found := _latest_by(_key_by_line, number, calls)) is not None:
        return replace(found, by_line=True)
    return found


def _latest_by(key_of: _KeyOf, number: int, calls: Sequence[Call]) -> Departure | None:
    keys = [key_of(call) for call in calls]
    for place in range(len(keys) - 1, max(0, len(keys) - NEWEST), -1):
        if (edit := _edit_at(keys, place)) is not None:
            left_out, extra = (tuple(calls[start:stop]) for start, stop in edit)
            return Departure(number, calls[place], left_out, extra)
        if (expected := _replaced_at(keys, place)) is not None and _differ_in_target(
            calls[expected], calls[place]
        ):
            return Departure(number, calls[place], (calls[expected],), (calls[place],))
        if (early := _early_at(calls, keys, place)) is not None:
            return Departure(number, calls[place], tuple(early), is_early=True)
    return None


def _early_at(calls: Sequence[Call], keys: Sequence[Hashable], place: int) -> list[Call] | None:
    """Return the calls of a round that come before one that a rank posted from a line of its own.

    None where the round has no such call on that communicator, or calls on it that come before.
    """
    length, equal = _round(keys, place)
    if not _is_rhythm(keys, place, length, equal) or keys[place] in keys[:place]:
        return None
    posted, loop = calls[place], calls[place - length : place]
    same = [n for n, one in enumerate(loop) if one.comm == posted.comm]
    if not same or not same[0] or loop[same[0]].signature != posted.signature:
        return None
    return [*loop[: same[0]]]


def _replaced_at(keys: Sequence[Hashable], place: int) -> int | None:
    """Return the place of the call that a round before has in place of one that is new to it."""
    length, equal = _round(keys, place)
    if not _is_rhythm(keys, place, length, equal) or keys[place] == keys[place - length]:
        return None
    loop = keys[place - length : place]
    if _has_followed(keys, place, loop) or not _agree(keys[place + 1 :], [*loop[1:], *loop]):
        return None
    return place - length


def _differ_in_target(expected: Call, posted: Call) -> bool:
    """Return whether two calls of one line differ in their communicator or peer, and only there."""
    lines = [(one.op, one.dtype, one.line) for one in (expected, posted)]
    targets = [(one.comm, one.peer) for one in (expected, posted)]
    return lines[0] == lines[1] and targets[0] != targets[1] and expected.site is not None


def _edit_at(
    keys: Sequence[Hashable], place: int
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return which earlier calls were left out at a place, and which were posted once more.

    Returns:
        None where the call at the place is the usual one.
    """
    length, equal = _round(keys, place)
    if not _is_rhythm(keys, place, length, equal) or keys[place] == keys[place - length]:
        return None
    if _has_followed(keys, place, keys[place - length : place]):
        return None
    edit = _edit(keys, place, length)
    if edit is None:
        return None
    start = place - length
    return (start, start + edit[0]), (place, place + edit[1])


def _key(call: Call) -> tuple[object, ...]:
    """Return what a call has in common with those of other rounds: all but sizes and tags.

    A transfer from another line is the same one: its peer distinguishes it.
    """
    if call.op in P2P_OPS:
        return call.comm, call.op, call.dtype, call.peer
    op = EVEN.get(call.op, call.op)
    return call.comm, op, call.dtype, call.redop, call.root, call.line


def _key_by_line(call: Call) -> tuple[object, ...]:
    """Return the same with the line of a transfer, as of a header and of what it announces."""
    return (*_key(call), call.line) if call.op in P2P_OPS else _key(call)


def _round(keys: Sequence[Hashable], place: int) -> tuple[int, int]:
    """Return the length of the round that ends before a place, and how many calls repeat it.

    Of all lengths, it is the shortest that most calls repeat. Their number, for each length, is
    that of equal calls of the reversed history and of its rest from there on: one pass, by the
    calls that the match furthest to the right has shown to be equal (Main and Lorentz).
    """
    back = keys[place - 1 :: -1] if place else keys[:0]
    equal = [0] * len(back)
    left = right = 0
    for start in range(1, len(back)):
        count = min(right - start, equal[start - left]) if start < right else 0
        while start + count < len(back) and back[count] == back[start + count]:
            count += 1
        if start + count > right:
            left, right = start, start + count
        equal[start] = count
    best = 0, -1
    for length in range(1, place // 2 + 1):
        if equal[length] >= length and equal[length] > best[1]:
            best = length, equal[length]
    return best


def _is_rhythm(keys: Sequence[Hashable], place: int, length: int, equal: int) -> bool:
    """Return whether a round before a place is repeated, and was nearly always.

    The calls of a loop whose rounds differ in length may have been equal by chance.
    """
    loop = set(keys[place - length : place])
    irregular = sum(key in loop for key in keys[: place - length - equal])
    return equal >= max(length, EQUAL) and RARELY * irregular <= equal + length


def _has_followed(keys: Sequence[Hashable], place: int, context: Sequence[Hashable]) -> bool:
    """Return whether the call at a place has followed a whole round before."""
    length = len(context)
    return any(
        keys[start + length] == keys[place] and keys[start : start + length] == context
        for start in range(place - length)
    )


def _edit(keys: Sequence[Hashable], place: int, length: int) -> tuple[int, int] | None:
    """Return how many calls of the round were left out, or posted too many, up to a place.

    One decision leaves out the rest of a round. Calls left out that end with those that may have
    been posted once more instead would be two: the latter are taken.

    Returns:
        None where the calls from there on are no later ones of the round, nor a part of it again.
    """
    rest, loop = keys[place:], keys[place - length : place]
    counts = range(1, length)
    fewer = next((count for count in counts if _agree(rest, [*loop[count:], *loop[:count]])), 0)
    more = next((count for count in counts if _agree(rest, [*loop[length - count :], *loop])), 0)
    if more and (not fewer or loop[:fewer][-more:] == loop[length - more :]):
        return 0, more
    return (fewer, 0) if fewer else None


def _agree(rest: Sequence[Hashable], expected: Sequence[Hashable]) -> bool:
    """Return whether calls are the expected ones, as far as both go."""
    return all(one == other for one, other in zip(rest, expected, strict=False))
