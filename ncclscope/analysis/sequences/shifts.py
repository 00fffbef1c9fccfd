"""Where equal calls stopped being the same calls.

Of many equal calls one can be left out, and nothing in what members must agree in shows it:
the sequences pair up one off, and only their ends differ in number. What else was recorded
of a call then tells which it is: the line it came from, the step of the engine it belongs
to, how far its rank had come on other communicators. Where these agree up to some call, and
from there to the end agree with those so many calls further on, the sequences parted at that
call. This is a conclusion, and whoever rests on it says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ncclscope.analysis.sequences.edits import Edit
from ncclscope.analysis.sequences.habit import PAST, expected_next
from ncclscope.analysis.sequences.replays import calls_on
from ncclscope.analysis.waits.order import made_before
from ncclscope.model import Communicator, Rank, Run
from ncclscope.model.log import CallLog

__all__ = ["Shift", "Track", "expected", "find_shift", "first_other_line", "tracks_of"]

Tokens = npt.NDArray[np.int64]

FURTHEST = 64
"""Calls by which sequences are tried to be off."""
NEAR = 4096
"""Calls before the end that are read first; four times as many each time they do not do."""
MOST = 1 << 20
"""Calls before the end that are read at most: replays of graphs stand for any number of them."""
AGREED = 64
"""Calls in a row that agree unshifted, before which nothing is looked for."""


@dataclass(frozen=True)
class Shift:
    """One sequence is the other with some calls left out, or put in.

    Attributes:
        seq: The first call that is another one.
        exact: False where the sequences were already off in the first call that is kept.
        left: Calls that are left out.
        put: Calls that are put in.
        met: Calls after it that are the same again.
        witness: What tells the calls apart, in words.
        later: Further calls left out or put in, counted from ``seq``.
    """

    seq: int
    exact: bool
    left: int
    put: int
    met: int
    item: str
    later: tuple[Edit, ...] = ()


@dataclass(frozen=True)
class Track:
    """One rank's calls on a communicator with one thing that tells equal calls apart.

    Attributes:
        rank: The rank.
        log: Its calls.
        others: Its calls on communicators that both ranks under comparison use.
        sites: Whether call sites tell.
        steps: Whether steps of the engine do.
        witness: The same in words.
    """

    rank: Rank
    log: CallLog
    others: tuple[CallLog, ...]
    sites: bool
    steps: bool
    item: str

    def tokens(self, start: int, stop: int, names: dict[str | None, int]) -> Tokens:
        """Returns what tells calls ``start`` to ``stop - 1`` apart: one row each.

        Args:
            start: First call.
            stop: The one after the last.
            names: Numbers of call sites, the same for both ranks; added to.
        """
        signatures = np.array(self.log.signatures(start, stop), np.uint64).view(np.int64)
        columns = [signatures]
        if self.sites:
            sites = self.log.sites(start, stop)
            columns.append(np.array([names.setdefault(site, len(names)) for site in sites]))
        if self.others or self.steps:
            positions = np.array(self.log.positions(start, stop), np.int64)
            columns += [_progress(other, positions) for other in self.others]
        if self.steps:
            begins = np.array([step.position for step in self.rank.steps], np.int64)
            numbers = np.array([-1, *(step.number for step in self.rank.steps)], np.int64)
            columns.append(numbers[np.searchsorted(begins, positions, side="right")])
        return np.stack(columns, axis=1)


def tracks_of(
    run: Run, comm: Communicator, one: tuple[Rank, CallLog], other: tuple[Rank, CallLog]
) -> Iterator[tuple[Track, Track]]:
    """Yields what may tell the calls of two ranks apart, the most telling first."""
    shared = [
        (one[0].logs[key], other[0].logs[key])
        for key in one[0].logs
        if key != comm.key and key in other[0].logs
    ]
    alike = _alike(run, one[0], other[0])
    sites = all(any(log.sites(log.calls, log.calls + 1)) for _, log in (one, other))
    steps = all(rank.last_step() is not None for rank, _ in (one, other))
    ways: list[tuple[list[tuple[CallLog, CallLog]], bool, bool, str]] = []
    if sites:
        ways.append(([], True, False, "the lines they came from"))
    if steps:
        ways.append(([], False, True, "the steps they belong to"))
    if shared:
        ways.append((shared, False, False, "the calls between them on other communicators"))
    if alike:
        ways.append(
            (alike, False, False, "the calls between them on communicators of the same kinds")
        )
    for pairs, by_site, by_step, item in ways:
        yield (
            Track(*one, tuple(own for own, _ in pairs), by_site, by_step, item),
            Track(*other, tuple(theirs for _, theirs in pairs), by_site, by_step, item),
        )


def find_shift(odd: Track, peer: Track, stops: tuple[int, int] | None = None) -> Shift | None:
    """Finds whether ``odd`` is ``peer`` with calls left out or put in that equal others.

    Args:
        odd: One rank's calls.
        peer: The other's.
        stops: The calls behind the last of each that are looked at; all when absent.

    Returns:
        None where the two agree as they stand, and where no shift makes them agree.
    """
    stop, peer_stop = stops or (odd.log.calls + 1, peer.log.calls + 1)
    stop, peer_stop = min(stop, odd.log.calls + 1), min(peer_stop, peer.log.calls + 1)
    first, last = max(odd.log.first, peer.log.first), min(stop, peer_stop) - 1
    if last < first:
        return None
    names: dict[str | None, int] = {}
    near = NEAR
    while True:
        start = max(first, last - near)
        one = odd.tokens(start, stop, names)
        other = peer.tokens(start, peer_stop, names)
        both = last + 1 - start
        differ = np.flatnonzero((one[:both] != other[:both]).any(axis=1))
        if not len(differ):
            return None
        place = int(differ[0])
        if start == first or place >= AGREED or near >= MOST:
            break
        near *= 4
    exact = place > 0 or start == 1
    for off in (*range(1, FURTHEST + 1), *_replays_at(odd, peer, start + place)):
        for left, put in ((off, 0), (0, off)):
            mine, theirs = one[place + put :], other[place + left :]
            met = min(len(mine), len(theirs))
            if met and np.array_equal(mine[:met], theirs[:met]):
                return Shift(start + place, exact, left, put, met, odd.item)
    return None


def _replays_at(odd: Track, peer: Track, seq: int) -> list[int]:
    """Returns how many calls there are in the replays that the ranks are in, where many."""
    found = {calls_on(track.rank, track.log.call(seq)) for track in (odd, peer)}
    return sorted(count for count in found if count > FURTHEST)


def expected(log: CallLog, seq: int, one: str | None, other: str | None) -> str | None:
    """Returns from which of two lines the call number ``seq`` was to come, by the past."""
    return expected_next(log.sites(max(log.first, seq - PAST), seq), one, other)


def first_other_line(odd: CallLog, peer: CallLog, seq: int) -> int | None:
    """Find from which call on one rank's calls came from other lines than its peer's.

    Args:
        odd: The one rank's calls.
        peer: The peer's.
        seq: A call that differs; those before it are equal.

    Returns:
        The first of an unbroken row of such calls up to ``seq``; None where there is none, or
        where the two ranks have passed by these lines before: then they are no news.
    """
    start = max(odd.first, peer.first, seq - PAST)
    pairs = list(zip(odd.sites(start, seq), peer.sites(start, seq), strict=True))
    first = len(pairs)
    while first and None not in pairs[first - 1] and pairs[first - 1][0] != pairs[first - 1][1]:
        first -= 1
    known = set(pairs[:first])
    while first < len(pairs) and pairs[first] in known:
        first += 1
    return start + first if 0 < first < len(pairs) else None


def _progress(other: CallLog, positions: Tokens) -> Tokens:
    """How many calls a rank had made on another communicator, at each of some positions."""
    if other.calls < other.first:
        return np.full(len(positions), other.calls, np.int64)
    low = made_before(other, int(positions[0])) + 1 if len(positions) else other.first
    made = np.array(other.positions(low, other.calls + 1), np.int64)
    return low - 1 + np.searchsorted(made, positions)


def _alike(run: Run, one: Rank, other: Rank) -> list[tuple[CallLog, CallLog]]:
    """Logs on communicators that play the same part for both, of which each rank has one."""
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
