"""Divide a history of calls into its rounds: what a rank left out, and where it departs from them.

A program repeats itself: a step posts the calls of the step before, an epoch those of the epoch
before. So the calls before a difference predict what comes after it, also where no rank has come
that far. A rank that left out calls posts a later one of them; a rank that left the loop posts a
call that the loop does not have. Both look like one call in place of another, as long as the ranks
wait in it.

Where the calls left out equal those before them, it is not known which of the equal rounds lacks
them: only that there is one fewer.

One communicator shows who has come to a call. The whole stream of a thread, on all communicators
and with its transfers, shows what it did instead: in each round before, other calls came here. So
where ranks wait for each other, and no majority decides, a rank that departs from its rounds is
the suspect, and one that keeps to them is not.

A call that is new is no departure: a program leaves its loop once, and its first evaluation comes
after many steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ncclscope.model import Call, Rank, Run
from ncclscope.model.log import CallLog, newest_of
from ncclscope.model.signature import BARRIERS, CREATION_OPS, P2P_OPS

PAST = 2048
"""Calls before a difference that are searched for rounds."""
EVEN = {"all_gatherv": "all_gather", "reduce_scatterv": "reduce_scatter"}
"""Operations that a library posts instead of another where the members' sizes differ."""
LOOP = 64
"""Calls of a rank before a difference whose lines are taken for those of the loop."""
_AHEAD = 256
"""Calls from the difference on that are compared."""

Key = tuple[object, ...]


@dataclass(frozen=True)
class LeftOut:
    """Calls that a rank left out, where its peers kept to their rounds.

    Attributes:
        calls: Number of calls.
        rounds: Number of equal rounds of as many calls among which the missing one is, the one
            that the rank left out included; 1 where the place is known.
        left: Whether the rank has left the loop: its call is none of the rounds'.
        repeated: Number of calls that the rank may have posted once more instead; 0 where its call
            comes from a line of its own in the round, which only another loop would reach again.
        statements: Number of statements that post the calls left out: a collective of objects
            posts two, and a loop over layers many.
        usual: Whether its call has come after the loop before, as after one of fewer rounds.
    """

    calls: int
    rounds: int
    left: bool
    repeated: int = 0
    statements: int = 0
    usual: bool = False

    @property
    def rather_repeated(self) -> bool:
        """Whether the rank more likely posted a few calls once more than left out more."""
        return 0 < self.repeated < self.statements


def left_out(odd: CallLog, peer: CallLog, seq: int) -> LeftOut | None:
    """Return which calls a rank left out before it posted its call ``seq``.

    Args:
        odd: Calls of the diverging rank.
        peer: Calls of a peer; those before ``seq`` are equal, as far as both are kept.
        seq: Number of the first differing call.

    Returns:
        None where the peers had no rounds, broke them as well, or where the diverging rank's calls
        are neither later ones of the rounds nor come after the loop.
    """
    start = max(peer.first, odd.first, seq - PAST)
    past, posted = peer.span(start, seq), peer.span(seq, min(peer.calls + 1, seq + _AHEAD))
    own = odd.span(seq, min(odd.calls + 1, seq + _AHEAD))
    if not past or not posted or not own or _is_variant(own[0], posted[0]):
        return None
    if has_another_parameter(own[0], posted[0], past):
        return None
    # A rank with lines of its own, as a root has, is compared without them.
    alike = [one.site for one in past] == [one.site for one in odd.span(start, seq)]
    for key_of in (_exactly, _by_line) if alike else (_exactly,):
        shown = slice(None) if alike else slice(1)
        history, ahead = [*map(key_of, past)], [*map(key_of, posted)]
        mine = [key_of(call)[shown] for call in own]
        if mine[0] == ahead[0][shown]:
            return None  # the same call, with other parameters
        for length in periods(history):
            predicted = _continued(history, ahead, length)
            if predicted is None:
                continue
            for skipped in range(1, length + 1):
                rest = [key[shown] for key in predicted[skipped : skipped + len(mine)]]
                if rest and rest == mine[: len(rest)]:
                    equal = _equal_before(history, predicted[:skipped])
                    shared = _shares_line(past[-length:], own[0])
                    again = _distance_back(history, mine) if shared else 0
                    count = _statements([past[at - length] for at in range(skipped)])
                    return LeftOut(skipped, 1 + equal, False, again, count)
            known = any(mine[0] == key[shown] for key in history)
            if not known and may_follow(own[0], past[-length:]):
                return _left(history, ahead, length)
        before = _shared_before(history, mine[0], shown)
        for length in periods(history):
            if length > before:
                break
            predicted = _continued(history, ahead, length)
            if predicted is not None:
                return replace(_left(history, ahead, length), usual=True)
    return None


def expected(peer: CallLog, seq: int, count: int) -> list[Call]:
    """Return the calls of a peer from ``seq`` on, and those that its rounds predict after them.

    Args:
        peer: Calls of the peer.
        seq: Number of the first one.
        count: Most calls to return.

    Returns:
        Those that it posted alone, where it had no rounds or broke them.
    """
    posted = peer.span(seq, min(peer.calls + 1, seq + count))
    past = peer.span(max(peer.first, seq - PAST), seq)
    history, ahead = [*map(_exactly, past)], [*map(_exactly, posted)]
    for length in periods(history):
        round_ = past[-length:]
        both = [*zip(ahead, map(_exactly, [*round_, *round_]), strict=False)]
        if all(one == other for one, other in both):
            return [*posted, *[*round_, *round_][len(posted) : count]]
    return list(posted)


def went_a_known_way(odd: CallLog, peer: CallLog, seq: int) -> bool:
    """Return whether a rank repeated a part of a round, as all ranks have after such a round.

    An inner loop may run a few times more, as for what is new. Then no call was left out.

    Args:
        odd: Calls of the diverging rank.
        peer: Calls of a peer; those before ``seq`` are equal, as far as both are kept.
        seq: Number of the first differing call.
    """
    past = peer.span(max(peer.first, odd.first, seq - PAST), seq)
    history = [*map(_exactly, past)]
    mine = [*map(_exactly, odd.span(seq, min(odd.calls + 1, seq + _AHEAD)))]
    following = [*map(_exactly, expected(peer, seq, 1))]
    for length in periods(history):
        if following != history[-length:][:1] or mine[0] not in history[-length:]:
            continue
        way = [*history[-length:], *mine]
        ends = range(len(way), len(history) + 1)
        return any(history[end - len(way) : end] == way for end in ends)
    return False


def distances(odd: CallLog, peer: CallLog, seq: int) -> tuple[int, int]:
    """Return how far from its peers a rank may be in a loop, by the line of its call ``seq``.

    Args:
        odd: Calls of the diverging rank.
        peer: Calls of a peer; those before ``seq`` are equal, as far as both are kept.
        seq: Number of the first differing call.

    Returns:
        How many calls ago the line posted its last call, and after how many calls it would post
        the next one, where it keeps its distance; 0 for each that is not known.
    """
    start = max(peer.first, odd.first, seq - PAST)
    lines = [_by_line(call) for call in odd.span(start, seq)]
    mine = _by_line(odd.call(seq))
    ago = [n for n in range(1, len(lines) + 1) if lines[-n] == mine][:2]
    if len(ago) < 2:
        return sum(ago), 0
    return ago[0], max(ago[1] - 2 * ago[0], 0)


def round_shift(odd: CallLog, peer: CallLog, seq: int) -> int:
    """Return by how many calls a rank is ahead of its peers' rounds, judging by changing sizes.

    A line may post another size in each round. A rank that left out a round posts the size of the
    next one, by the step from round to round; a rank that repeated a round those of the last one.

    Args:
        odd: Calls of the diverging rank.
        peer: Calls of a peer; those before ``seq`` are equal, as far as both are kept.
        seq: Number of the first differing call.

    Returns:
        The length of the round: positive where it was left out, negative where it was repeated. 0
        where the two calls come from different lines, or where one size alone may be wrong.
    """
    past = peer.span(max(peer.first, odd.first, seq - PAST), seq)
    mine = odd.span(seq, min(odd.calls + 1, seq + _AHEAD))
    theirs = peer.span(seq, min(peer.calls + 1, seq + _AHEAD))
    if not mine or not theirs or theirs[0].site is None or _by_line(mine[0]) != _by_line(theirs[0]):
        return 0
    length, step = _last_step(past, theirs[0])
    if not length or not step:
        return 0
    whole = [*past, *mine]
    before = whole[len(past) - length :]
    if all(one.signature == two.signature for one, two in zip(mine, before, strict=False)):
        return -length
    if (mine[0].numel or 0) - (theirs[0].numel or 0) != step:
        return 0
    for one, two in list(zip(mine, theirs, strict=False))[1:]:
        if one.signature == two.signature and _last_step(past, two)[1]:
            return 0  # it is in the same round
    return length


def _last_step(past: Sequence[Call], call: Call) -> tuple[int, int]:
    """Return how many calls ago a line posted its last call, and by how much it has grown since."""
    line = _by_line(call)
    for back, one in enumerate(reversed(past), 1):
        if _by_line(one) == line:
            return back, (call.numel or 0) - (one.numel or 0)
    return 0, 0


def equal_rounds(log: CallLog, seq: int, calls: int) -> int:
    """Return how many rounds equal to the next calls of a log end with those before them.

    Args:
        log: The log.
        seq: Number of the first of the next calls.
        calls: Their number.
    """
    past = log.span(max(log.first, seq - PAST), seq)
    following = log.span(seq, min(seq + calls, log.calls + 1))
    if len(following) < calls:
        return 0
    return _equal_before([*map(_exactly, past)], [*map(_exactly, following)])


def may_have_left_out(peer: CallLog, seq: int, call: Call) -> bool:
    """Return whether a rank may have left out calls up to one that it posted instead of its peer's.

    So it may have if the call comes after the loop, or where the peer is in its first round.

    Args:
        peer: Calls of the peer, which posted ``seq``.
        seq: Number of the first differing call.
        call: What the diverging rank posted as ``seq``.
    """
    past = peer.span(max(peer.first, seq - PAST), seq)
    lines, line = [one.line for one in past], peer.call(seq).line
    if line not in lines:
        return True
    last = len(lines) - 1 - lines[::-1].index(line)
    return call.line not in lines and may_follow(call, past[last:])


def periods(history: Sequence[object]) -> Iterator[int]:
    """Yield the lengths of rounds that the end of a history repeats, the shortest first.

    A round counts if the last two are equal. Rounds of rounds are longer, and come later.
    """
    for length in range(1, len(history) // 2 + 1):
        if history[-length:] == history[-2 * length : -length]:
            yield length


def _continued(history: list[Key], ahead: list[Key], length: int) -> list[Key] | None:
    """Return what comes after a history; None where what was posted is something else."""
    predicted = [*history[-length:], *history[-length:]]
    both = min(len(ahead), len(predicted))
    if ahead[:both] == predicted[:both]:
        return predicted
    # The peers may have left the loop as well, after at least one whole round.
    return ahead if ahead[:length] == predicted[:length] else None


def _left(history: list[Key], ahead: list[Key], length: int) -> LeftOut:
    """Return the rest of a round, or what the peers posted in the loop that a rank left."""
    following = [*itertools.islice(itertools.cycle(history[-length:]), len(ahead))]
    in_loop = next((n for n, key in enumerate(ahead) if key != following[n]), len(ahead))
    missing = max(length - _offset(history, length), in_loop)
    following = [*itertools.islice(itertools.cycle(history[-length:]), missing)]
    return LeftOut(missing, 1 + _equal_before(history, following), left=True)


def _shared_before(history: list[Key], call: Key, shown: slice) -> int:
    """Return how many of the last calls came before a call already, as the end of a loop.

    Args:
        history: The calls so far.
        call: The call that a rank posted behind them.
        shown: The part of a key that is compared with the call.

    Returns:
        The most calls of all times that the call was posted; 0 where it never was.
    """
    places = [place for place, key in enumerate(history) if key[shown] == call][-_AHEAD:]
    most = 0
    for place in places:
        same = 0
        while same < min(place, _AHEAD) and history[place - 1 - same] == history[-1 - same]:
            same += 1
        most = max(most, same)
    return most


def _equal_before(history: list[Key], block: list[Key]) -> int:
    """Return how many blocks equal to one end a history."""
    found, end = 0, len(history)
    while end >= len(block) and history[end - len(block) : end] == block:
        found, end = found + 1, end - len(block)
    return found


def _offset(history: list[Key], length: int) -> int:
    """Return how many calls of the last round were posted.

    A loop begins with its first round, wherever that is in a history that it ends.
    """
    start = len(history) - length
    while start > 0 and history[start - 1] == history[start - 1 + length]:
        start -= 1
    return (len(history) - start) % length


def _statements(calls: Sequence[Call]) -> int:
    """Return how many statements post some calls.

    One posts different ones in a row, as for an object, or the same one again, as in a loop.
    """
    found, last, own = 0, None, set[Key]()
    for call in calls:
        what = call.op, call.dtype, call.redop, call.root
        again = what in own and (last is None or call.signature != last.signature)
        if last is None or call.line != last.line or call.site is None or again:
            found, own = found + 1, set()
        last = call
        own.add(what)
    return found


def has_another_parameter(own: Call, expected: Call, past: Sequence[Call]) -> bool:
    """Return whether a call is its peers' one with a parameter that it has never had.

    Args:
        own: The call of the diverging rank.
        expected: The call of its peers, from the same line and of the same size.
        past: Earlier calls, in which each call of a round has its parameters.
    """
    same = [(one.line, one.op, one.dtype, one.shape, one.numel) for one in (own, expected)]
    if same[0] != same[1] or own.site is None:
        return False
    known = {(one.signature, one.site) for one in past}
    return (expected.signature, expected.site) in known and (own.signature, own.site) not in known


def _is_variant(call: Call, other: Call) -> bool:
    """Return whether two calls of one line are variants, of which one has uneven parts."""
    return call.op != other.op and _by_line(call) == _by_line(other)


def _distance_back(history: list[Key], calls: list[Key]) -> int:
    """Return how many calls ago the latest calls equal to some were posted; 0 where never."""
    shown = slice(len(calls[0]))
    for distance in range(1, len(history) + 1):
        since = [key[shown] for key in history[-distance:]][: len(calls)]
        if since == calls[: len(since)]:
            return distance
    return 0


def _shares_line(loop: Sequence[Call], call: Call) -> bool:
    """Return whether several calls of a loop have the line of a call, as those of a helper do."""
    return sum(one.line == call.line for one in loop) > 1


def may_follow(call: Call, loop: Sequence[Call]) -> bool:
    """Return whether a call may come after a loop, whose last round is given.

    In the function of the loop that shows by its line. From another function, only a barrier is
    taken for the end of a loop: other calls may be a part of it that one rank alone has.
    """
    place = place_of(call.user_site or call.site)
    known = [found for one in loop if (found := place_of(one.user_site or one.site)) is not None]
    if place is None or len(known) < len(loop):
        return False
    lines = [line for file, function, line in known if (file, function) == place[:2]]
    if lines:
        return place[2] > max(lines)
    return call.op in BARRIERS and call.user_site is None


def is_behind_the_loop(rank: Rank, posted: Call) -> bool:
    """Return whether a call comes after what its rank posted in a loop on all communicators.

    Functions that the loop calls may have the same name, as methods do: all lines in the call's
    file have to be above it.

    Args:
        rank: The rank.
        posted: Its call.
    """
    loop = [
        call
        for log in rank.logs.values()
        for call in log.span(max(log.first, log.calls - LOOP), log.calls + 1)
        if 0 < posted.position - call.position <= LOOP
    ]
    here = place_of(posted.user_site or posted.site)
    places = [place_of(one.user_site or one.site) for one in loop]
    below = any(one and here and one[0] == here[0] and one[2] >= here[2] for one in places)
    return bool(loop) and not below and may_follow(posted, loop)


def place_of(site: str | None) -> tuple[str, str, int] | None:
    """Return file, function and line of a call site, ``file:line function``."""
    where, _, function = (site or "").partition(" ")
    file, _, line = where.rpartition(":")
    return (file, function, int(line)) if file and line.isdecimal() else None


def _exactly(call: Call) -> Key:
    return call.signature, *call.line


def _by_line(call: Call) -> Key:
    """Return what calls of other sizes have in common; without a line they are not known apart."""
    op = EVEN.get(call.op, call.op)
    return op, call.dtype, call.redop, call.root, call.site or call.seq, call.user_site


PAST_OF_RANK = 384
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
        for call in log.span(max(log.first, log.calls + 1 - PAST_OF_RANK), log.calls + 1)
        if call.op not in CREATION_OPS
    ]
    calls += [call for sent in rank.p2p.values() for call in newest_of(sent, PAST_OF_RANK)]
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
