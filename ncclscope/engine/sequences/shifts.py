"""Find where sequences of equal calls diverge, by other recorded details.

If a rank skips one of many equal calls, no signature shows it: the sequences match shifted by one,
and only their lengths differ. Other details of a call then identify it: the line it came from, its
engine step, and its rank's progress on other communicators. Where these agree up to some call, and
agree from there on with a shift, the sequences diverged at that call. This is inferred, and
verdicts that rely on it say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from ncclscope.engine.sequences.align import Edit
from ncclscope.engine.sequences.habit import PAST, expected_next
from ncclscope.engine.sequences.replays import Block, block_at, calls_on
from ncclscope.model import Communicator, Rank, Run
from ncclscope.model.log import CallLog, made_before
from ncclscope.model.threads import are_ordered
from ncclscope.wording.differences import Item

Tokens = npt.NDArray[np.int64]

FURTHEST = 64
"""Maximum shift, in calls, that is tried."""
NEAR = 4096
"""Newest calls that are read first; four times as many each time they do not suffice."""
MOST = 1 << 20
"""Newest calls that are read at most: one replay of a graph may cover any number of calls."""
MOST_OTHERS = 1 << 15
"""Most pairs of a communicator and another one whose progress is compared; at least 8 for each."""
AGREED = 64
"""Consecutive calls that agree unshifted, before which no earlier difference is searched."""


@dataclass(frozen=True)
class Shift:
    """One sequence equals the other with some calls deleted or inserted.

    Attributes:
        seq: The first differing call.
        exact: False where the sequences are already shifted in the first kept call.
        deleted: Number of deleted calls.
        inserted: Number of inserted calls.
        matched: Number of matched calls after it.
        item: The recorded detail that identifies the calls.
        later: Further edits, counted from ``seq``.
        equal: Number of calls right before it that equal the deleted or inserted ones in all that
            is recorded, so that any of them may be the one.
    """

    seq: int
    exact: bool
    deleted: int
    inserted: int
    matched: int
    item: Item
    later: tuple[Edit, ...] = ()
    equal: int = 0


@dataclass(frozen=True)
class Track:
    """One rank's calls on a communicator with one detail that distinguishes equal calls.

    Attributes:
        rank: The rank.
        log: Its calls.
        others: Its calls on communicators that both ranks use, whose progress is the detail.
        item: The detail.
    """

    rank: Rank
    log: CallLog
    others: tuple[CallLog, ...]
    item: Item

    def tokens(self, start: int, stop: int, names: dict[str | None, int]) -> Tokens:
        """Return the signature and detail of each call in ``[start, stop)`` as int64 numbers.

        Args:
            start: Number of the first call.
            stop: Number after the last call.
            names: Numbers of call sites or shapes, shared by both ranks; extended by this method.

        Returns:
            An array ``[stop - start, columns]``.
        """
        signatures = np.array(self.log.signatures(start, stop), np.uint64).view(np.int64)
        columns = [signatures]
        if self.item is Item.LINES:
            sites = self.log.sites(start, stop)
            columns.append(np.array([names.setdefault(site, len(names)) for site in sites]))
        if self.item is Item.SHAPES:
            shapes = [str(call.shape) for call in self.log.span(start, stop)]
            columns.append(np.array([names.setdefault(shape, len(names)) for shape in shapes]))
        if self.others or self.item is Item.STEPS:
            positions = np.array(self.log.positions(start, stop), np.int64)
            columns += [_progress(other, positions) for other in self.others]
        if self.item is Item.STEPS:
            begins = np.array([step.position for step in self.rank.steps], np.int64)
            numbers = np.array([-1, *(step.number for step in self.rank.steps)], np.int64)
            columns.append(numbers[np.searchsorted(begins, positions, side="right")])
        return np.stack(columns, axis=1)


def tracks_of(
    run: Run,
    comm: Communicator,
    one: tuple[Rank, CallLog],
    other: tuple[Rank, CallLog],
    *,
    shapes: bool,
) -> Iterator[tuple[Track, Track]]:
    """Yield the details that may distinguish the calls of two ranks, the most specific first.

    Args:
        run: The run.
        comm: The communicator.
        one: A rank and its calls there.
        other: Another rank and its calls there.
        shapes: Whether to decode calls for their shapes, which takes longer than the rest.
    """
    keys = (key for key in one[0].logs if key != comm.key and key in other[0].logs)
    most = max(MOST_OTHERS // len(run.communicators), 8)
    shared = [(one[0].logs[key], other[0].logs[key]) for key in islice(keys, most)]
    # What another thread of a rank posted meanwhile says nothing of its progress.
    shared, alike = (
        [
            (own, theirs)
            for own, theirs in pairs
            if are_ordered((one[1], own)) and are_ordered((other[1], theirs))
        ]
        for pairs in (shared, _alike(run, one[0], other[0]))
    )
    sites = all(any(log.sites(log.calls, log.calls + 1)) for _, log in (one, other))
    steps = all(rank.last_step() is not None for rank, _ in (one, other))
    ways: list[tuple[list[tuple[CallLog, CallLog]], Item]] = []
    if sites:
        ways.append(([], Item.LINES))
    if steps:
        ways.append(([], Item.STEPS))
    if shared:
        ways.append((shared, Item.OTHER_CALLS))
    if alike:
        ways.append((alike, Item.LIKE_CALLS))
    if shapes:
        ways.append(([], Item.SHAPES))
    for pairs, item in ways:
        yield (
            Track(*one, tuple(own for own, _ in pairs), item),
            Track(*other, tuple(theirs for _, theirs in pairs), item),
        )


def find_shift(diverging: Track, peer: Track, stops: tuple[int, int] | None = None) -> Shift | None:
    """Find the shift under which ``diverging`` equals ``peer`` with calls deleted or inserted.

    Args:
        diverging: The diverging rank's calls.
        peer: A peer's calls.
        stops: For each of the two, the number after the last call to compare; all by default.

    Returns:
        None where the two agree without a shift, or with none.
    """
    stop, peer_stop = stops or (diverging.log.calls + 1, peer.log.calls + 1)
    stop, peer_stop = min(stop, diverging.log.calls + 1), min(peer_stop, peer.log.calls + 1)
    first, last = max(diverging.log.first, peer.log.first), min(stop, peer_stop) - 1
    if last < first:
        return None
    names: dict[str | None, int] = {}
    near = NEAR
    while True:
        start = max(first, last - near)
        one = diverging.tokens(start, stop, names)
        other = peer.tokens(start, peer_stop, names)
        both = last + 1 - start
        unequal = one[:both] != other[:both]
        if (
            diverging.item is Item.LINES and None in names
        ):  # a line that was not recorded may be any
            unequal[:, 1] &= (one[:both, 1] != names[None]) & (other[:both, 1] != names[None])
        differ = np.flatnonzero(unequal.any(axis=1))
        if not len(differ):
            return None
        place = int(differ[0])
        if start == first or place >= AGREED or near >= MOST:
            break
        near *= 4
    exact = place > 0 or start == 1
    for off in (*range(1, FURTHEST + 1), *_replays_at(diverging, peer, start + place)):
        for deleted, inserted in ((off, 0), (0, off)):
            mine, theirs = one[place + inserted :], other[place + deleted :]
            matched = min(len(mine), len(theirs))
            if matched and np.array_equal(mine[:matched], theirs[:matched]):
                extra = one[place : place + inserted]
                if inserted > matched and _rows(extra) & _rows(other):
                    continue  # a few calls at the end fit with some shift of many that are alike
                if _is_other_branch(one[:both], other[:both], differ, off):
                    return None
                equal = _equal_before(other if deleted else one, place, off)
                edit = deleted, inserted, matched
                return Shift(start + place, exact, *edit, diverging.item, equal=equal)
    return None


def _equal_before(tokens: Tokens, place: int, count: int) -> int:
    """Return how many rows before some equal those ``count`` ones, taken over and over again."""
    equal = 0
    while equal < place and np.array_equal(
        tokens[place - 1 - equal], tokens[place - 1 - equal + count]
    ):
        equal += 1
    return equal // count * count


def first_unlike(one: Track, other: Track) -> int | None:
    """Return the number of the first call in which two ranks differ, details included.

    Args:
        one: A rank's calls.
        other: Another rank's calls, on this communicator or on one with the same role.

    Returns:
        None where they agree as far as both have come.
    """
    stop = min(one.log.calls, other.log.calls) + 1
    start = max(one.log.first, other.log.first, stop - NEAR)
    names: dict[str | None, int] = {}
    tokens = [track.tokens(start, stop, names) for track in (one, other)]
    differ = np.flatnonzero((tokens[0] != tokens[1]).any(axis=1))
    return start + int(differ[0]) if len(differ) else None


def shifted_replays(
    diverging: tuple[Rank, CallLog], peer: tuple[Rank, CallLog], stop: int
) -> Shift | None:
    """Find the first replay of a graph that has more calls on one rank than on another.

    Where all calls of a graph are equal, only the lengths of the graphs show what is missing.

    Args:
        diverging: The diverging rank and its calls.
        peer: A peer and its calls.
        stop: Number after the last call that is compared.

    Returns:
        None where no graph of one number has another length in two replays in a row. In one
        alone, a rank may have captured the rest of it into its next graph.
    """
    if not (diverging[0].graphs and peer[0].graphs):
        return None  # without a graph, no call has to be read
    first = own = theirs = max(diverging[1].first, peer[1].first, 1)
    stop = min(stop, first + NEAR)
    edits: list[Edit] = []
    start = 0
    while max(own, theirs) < stop and len(edits) < FURTHEST:
        blocks = [block_at(*diverging, own), block_at(*peer, theirs)]
        whole = [one for one in blocks if one is not None]
        if len(whole) < len(blocks) or not _is_one_graph(whole, (own, theirs)):
            if edits:
                break
            own, theirs = own + 1, theirs + 1
            continue
        counts = [one.calls for one in whole]
        both = min(counts)
        if counts[0] != counts[1]:
            start = start or own + both
            at = own + both - start, theirs + both - start
            edits.append(Edit(at[0], counts[0] - both, at[1], counts[1] - both, both))
        own, theirs = own + counts[0], theirs + counts[1]
    if len(edits) < 2 or start >= stop:
        return None
    exact = start > first or first == 1
    one = edits[0]
    return Shift(
        start, exact, one.deleted, one.inserted, one.matched, Item.GRAPHS, tuple(edits[1:])
    )


def _is_one_graph(blocks: list[Block], starts: tuple[int, int]) -> bool:
    """Return whether two replays, each from its first call on, are of graphs of one number."""
    one, other = blocks
    same = (one.graph, one.replay) == (other.graph, other.replay)
    return same and (one.seq, other.seq) == starts


def _rows(tokens: Tokens) -> set[tuple[int, ...]]:
    return {*map(tuple, tokens.tolist())}


def _is_other_branch(one: Tokens, other: Tokens, differ: Tokens, off: int) -> bool:
    """Return whether two ranks agree without a shift, but for a few calls from other lines.

    A program that repeats itself matches with a shift by any number of its periods, too. But if a
    call is missing, what one rank has too early the other has later.

    Args:
        one: A rank's calls, as numbers ``[n, columns]``.
        other: Another rank's calls with the same numbers.
        differ: The rows that differ.
        off: The shift that explains them as well.
    """
    if len(differ) > off or len(one) - 1 - differ[-1] < off:
        return False
    rows = (sorted(map(tuple, tokens[differ].tolist())) for tokens in (one, other))
    return next(rows) != next(rows)


def _replays_at(diverging: Track, peer: Track, seq: int) -> list[int]:
    """Return the lengths of the replays at a call, where they exceed FURTHEST."""
    found = {calls_on(track.rank, track.log.call(seq)) for track in (diverging, peer)}
    return sorted(count for count in found if count > FURTHEST)


def expected(log: CallLog, seq: int, one: str | None, other: str | None) -> str | None:
    """Return from which of two lines call ``seq`` was expected, judging by earlier calls.

    Args:
        log: A rank's calls.
        seq: Number of the call.
        one: A call site.
        other: Another call site.
    """
    return expected_next(log.sites(max(log.first, seq - PAST), seq), one, other)


def first_other_line(diverging: CallLog, peer: CallLog, seq: int) -> int | None:
    """Find the first call from which on a rank's calls came from other lines than its peer's.

    Args:
        diverging: The diverging rank's calls.
        peer: A peer's calls.
        seq: A call that differs; those before it are equal.

    Returns:
        The first of an unbroken row of such calls up to ``seq``; None where there is none, or
        where the two ranks have used this pair of lines before.
    """
    start = max(diverging.first, peer.first, seq - PAST)
    pairs = list(zip(diverging.sites(start, seq), peer.sites(start, seq), strict=True))
    first = len(pairs)
    while first and None not in pairs[first - 1] and pairs[first - 1][0] != pairs[first - 1][1]:
        first -= 1
    known = set(pairs[:first])
    while first < len(pairs) and pairs[first] in known:
        first += 1
    return start + first if 0 < first < len(pairs) else None


def _progress(other: CallLog, positions: Tokens) -> Tokens:
    """Return how many calls a rank had made on another communicator at ``positions`` ``[n]``."""
    if other.calls < other.first:
        return np.full(len(positions), other.calls, np.int64)
    low = other.first
    if other.calls - low > NEAR and len(positions):  # reading a few costs less than a search
        low = made_before(other, int(positions[0])) + 1
    made = np.array(other.positions(low, other.calls + 1), np.int64)
    return low - 1 + np.searchsorted(made, positions)


def _alike(run: Run, one: Rank, other: Rank) -> list[tuple[CallLog, CallLog]]:
    """Return pairs of logs on communicators of one kind, of which each rank has exactly one."""
    kinds: list[dict[str, list[str]]] = [{}, {}]
    for rank, found in zip((one, other), kinds, strict=True):
        for key in rank.logs:
            if kind := run.communicators[key].kind:
                found.setdefault(kind, []).append(key)
    return [
        (one.logs[keys[0]], other.logs[theirs[0]])
        for kind, keys in kinds[0].items()
        if len(keys) == 1
        and len(theirs := kinds[1].get(kind, [])) == 1
        and theirs[0] not in one.logs
    ]
