"""Divide a history of calls into its repeating rounds, and say which calls a rank left out.

A program repeats itself: a step posts the calls of the step before, an epoch those of the epoch
before. So the calls before a difference predict what comes after it, also where no rank has come
that far. A rank that left out calls posts a later one of them; a rank that left the loop posts a
call that the loop does not have. Both look like one call in place of another, as long as the ranks
wait in it.

Where the calls left out equal those before them, it is not known which of the equal rounds lacks
them: only that there is one fewer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ncclscope.model import Call, Rank
from ncclscope.model.log import CallLog
from ncclscope.model.signature import BARRIERS

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
