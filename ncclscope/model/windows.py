"""Input that holds only the last so many calls of each rank.

A bounded buffer in the program counts what it holds, not what was called: where a rank
made one more call on one communicator, it must have one less on another. Seed 003's table
is such a one: every row adds up to 10,000. Counts of that kind prove nothing, so input of
that kind must be known for what it is, and its calls need numbers that mean the same on
all ranks before any two of them can be compared.

Those numbers come from the contents. One communicator's calls alone often say too little:
four hundred times the same call fits anywhere. Ranks that run the same program on the same
data, such as the ranks of a tensor-parallel group, are therefore compared in all their calls
at once. They make a *crew*, and one shift between two of them numbers all of their
communicators. Between crews, all the communicators that they share have a vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncclscope.model.call import Call, Communicator
from ncclscope.model.log import CallLog
from ncclscope.model.memory import ListLog
from ncclscope.model.run import Rank
from ncclscope.model.signature import BASE

__all__ = ["PlacedLog", "WindowShift", "best_shift", "infer_windows"]

Signatures = NDArray[np.uint64]

ALIKE = 0.9
"""Part of the calls that two ranks must have in common to belong to one crew."""
ENOUGH = 0.25
"""Part of the shorter window in which they must be seen to have them."""
CREWS_TRIED = 16
CANDIDATES = 256
"""Shifts that are examined call by call."""


class WindowShift(NamedTuple):
    """How two sequences lie against each other.

    Attributes:
        start: Place in the one where the other begins; negative where it begins before it.
        agreeing: Calls that agree under this shift.
        overlap: Calls that both have.
    """

    start: int
    agreeing: int
    overlap: int

    @property
    def score(self) -> int:
        """Calls that agree, less those that do not."""
        return 2 * self.agreeing - self.overlap


class PlacedLog(ListLog):
    """A window's calls on one communicator, with numbers that mean the same on all ranks.

    Args:
        communicator: What the calls were made on.
        calls: In order.
        first: Number of the first of them.
    """

    def __init__(self, communicator: Communicator, calls: Sequence[Call], first: int) -> None:
        if calls and calls[0].seq != first:
            calls = [replace(call, seq=seq) for seq, call in enumerate(calls, first)]
        super().__init__(communicator, calls, anchored=False)
        self.first = first


def infer_windows(ranks: Sequence[Rank]) -> list[Rank]:
    """Marks ranks as windows that do not say so themselves, and numbers the calls of windows.

    Ranks are windows where their calls are unnumbered and their rows all add up alike. Equal
    totals alone are no proof: a rank that made 17 calls on the wrong communicator has the
    same total too. But a full trace begins with the same calls on all ranks, and windows of
    programs in different positions do not.
    """
    marked = list(ranks)
    plain = [
        rank
        for rank in ranks
        if rank.details.get("format") == "jsonl" and not rank.details.get("numbered")
    ]
    if (
        len(plain) >= 2
        and not any(rank.window for rank in plain)
        and len({rank.records for rank in plain}) == 1
        and _begin_apart(plain)
    ):
        marked = [replace(rank, window=True) if rank in plain else rank for rank in ranks]
    windows = [rank for rank in marked if rank.window]
    if not windows:
        return marked
    placed = dict(zip(map(id, windows), _place(windows), strict=True))
    return [placed.get(id(rank), rank) for rank in marked]


def best_shift(one: Signatures, other: Signatures) -> WindowShift | None:
    """Finds how two sequences of signatures lie against each other.

    That is where the most calls agree and the fewest do not; of several such places, the one
    nearest to where both end together. To try them all costs a Fourier transform: each signature
    stands for a direction in the plane, and where two sequences agree the directions add up.

    Returns:
        None where one of them is empty.
    """
    n, m = len(one), len(other)
    if not n or not m:
        return None
    size = 1 << (n + m - 1).bit_length()
    agreeing = np.zeros(size)
    turns = (1, 3, 5)
    for turn in turns:
        spectrum = np.fft.fft(_directions(one, turn), size)
        spectrum *= np.conj(np.fft.fft(_directions(other, turn), size))
        agreeing += np.fft.ifft(spectrum).real
    starts = np.arange(1 - m, n)
    overlaps = np.minimum(n, m + starts) - np.maximum(0, starts)
    scores = 2 * agreeing[starts % size] / len(turns) - overlaps
    most = min(CANDIDATES, len(starts))
    likely = starts[np.argpartition(scores, -most)[-most:]].tolist()
    shifts = [_count(one, other, start) for start in likely]
    # Of shifts that are as good, the one under which both end together: records are taken of all
    # ranks at one time, and how far back each reaches depends on its traffic.
    return max(shifts, key=lambda shift: (shift.score, -abs(shift.start + m - n), shift.start))


def _directions(signatures: Signatures, turn: int) -> NDArray[np.complex128]:
    part = (signatures * np.uint64(turn)).astype(np.float64) / 2.0**64
    directions: NDArray[np.complex128] = np.exp(2j * np.pi * part)
    return directions


def _count(one: Signatures, other: Signatures, start: int) -> WindowShift:
    low, high = max(start, 0), min(len(one), start + len(other))
    equal = one[low:high] == other[low - start : high - start]
    return WindowShift(start, int(np.count_nonzero(equal)), high - low)


def _begin_apart(ranks: Sequence[Rank]) -> bool:
    """Whether members of one communicator begin with different calls, and count differently."""
    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    apart = uneven = False
    for rank in ranks:
        for key, log in rank.logs.items():
            if log.calls < log.first:
                continue
            signature = log.call(log.first).signature
            apart = apart or first.setdefault(key, signature) != signature
            uneven = uneven or counts.setdefault(key, log.calls) != log.calls
    return apart and uneven


# --- numbers ---------------------------------------------------------------------------------


class _Stream:
    """All collectives of one rank, in the order in which it made them.

    Attributes:
        rank: Whose they are.
        calls: By communicator.
        lanes: By communicator: its label, which communicators of the same part share, or its
            key where it has none.
        contents: Signatures, by lane.
        whole: What tells calls apart, the lane included.
        order: Lane of each call.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.calls = {
            key: list(log.span(log.first, log.calls + 1)) for key, log in rank.logs.items()
        }
        self.lanes = _lanes(rank.logs)
        self.contents = {
            self.lanes[key]: np.array([call.signature for call in calls], np.uint64)
            for key, calls in self.calls.items()
        }
        positions = [[call.position for call in calls] for calls in self.calls.values()]
        order = np.argsort(np.concatenate([np.array(own, np.int64) for own in positions]))
        names = np.repeat(np.arange(len(positions)), [len(own) for own in positions])[order]
        self.order = [list(self.contents)[name] for name in names]
        salts = np.array([_salt(lane) for lane in self.contents], np.uint64)
        self.whole = np.concatenate(list(self.contents.values()))[order] * np.uint64(BASE)
        self.whole += salts[names]

    def before(self, place: int) -> Counter[str]:
        """How many calls of each lane come before a place."""
        return Counter(self.order[:place])


@dataclass
class _Crew:
    """Ranks that run the same program on the same data.

    Attributes:
        members: The first is the one that the others are compared with.
        offsets: Of each member, by lane: calls that were made before the first it has kept,
            counted from where the first member's window begins.
        base: By lane: what is to be added to them, so that they mean the same in all crews.
    """

    members: list[_Stream]
    offsets: list[Mapping[str, int]]
    base: dict[str, int] = field(default_factory=dict)

    def take(self, stream: _Stream) -> bool:
        """Takes a rank in if its calls are the crew's."""
        first = self.members[0]
        if not first.calls.keys() & stream.calls.keys():
            return False
        shift = best_shift(first.whole, stream.whole)
        if shift is None or shift.agreeing < ALIKE * shift.overlap:
            return False
        if shift.overlap < ENOUGH * min(len(first.whole), len(stream.whole)):
            return False
        self.members.append(stream)
        self.offsets.append(
            first.before(shift.start)
            if shift.start >= 0
            else {lane: -count for lane, count in stream.before(-shift.start).items()}
        )
        return True

    def offset(self, member: int, lane: str) -> int:
        """Calls on a lane before the first one that a member has kept."""
        return self.base.get(lane, 0) + self.offsets[member].get(lane, 0)


def _place(ranks: Sequence[Rank]) -> list[Rank]:
    """Gives the calls of windows numbers that mean the same on all ranks."""
    crews: list[_Crew] = []
    for rank in ranks:
        stream = _Stream(rank) if rank.logs else None
        if stream is not None and not any(crew.take(stream) for crew in crews[:CREWS_TRIED]):
            crews.append(_Crew([stream], [{}]))
    for number, crew in enumerate(crews):
        crew.base = _vote(crews[:number], crew)
    starts: dict[str, int] = {}
    for crew in crews:
        for member, stream in enumerate(crew.members):
            for lane in stream.contents:
                offset = crew.offset(member, lane)
                starts[lane] = min(offset, starts.get(lane, offset))
    placed = {}
    for crew in crews:
        for member, stream in enumerate(crew.members):
            logs: dict[str, CallLog] = {}
            for key, lane in stream.lanes.items():
                first = crew.offset(member, lane) - starts[lane] + 1
                logs[key] = PlacedLog(stream.rank.logs[key].communicator, stream.calls[key], first)
            placed[id(stream.rank)] = replace(stream.rank, logs=logs)
    return [placed.get(id(rank), rank) for rank in ranks]


def _vote(placed: Iterable[_Crew], crew: _Crew) -> dict[str, int]:
    """Returns by lane how a crew's numbers follow from those of the crews before it."""
    members: dict[str, tuple[_Stream, int]] = {}
    for other in placed:
        for place, stream in enumerate(other.members):
            for key, lane in stream.lanes.items():
                members.setdefault(key, (stream, other.offset(place, lane)))
    votes: dict[str, Counter[int]] = {}
    voted = set()
    for place, stream in enumerate(crew.members):
        for key, lane in stream.lanes.items():
            if key in voted or key not in members:
                continue
            peer, offset = members[key]
            shift = best_shift(peer.contents[peer.lanes[key]], stream.contents[lane])
            if shift is not None:
                voted.add(key)
                base = offset + shift.start - crew.offsets[place].get(lane, 0)
                votes.setdefault(lane, Counter())[base] += max(shift.score, 1)
    return {lane: max(cast, key=lambda base: (cast[base], base)) for lane, cast in votes.items()}


def _lanes(logs: Mapping[str, CallLog]) -> dict[str, str]:
    labels = Counter(log.communicator.label for log in logs.values())
    return {
        key: log.communicator.label if labels[log.communicator.label] == 1 else key
        for key, log in logs.items()
    }


def _salt(lane: str) -> int:
    return int.from_bytes(lane.encode()[:8].ljust(8, b"\0"), "little")
