"""Windows: input that holds only the newest calls of each rank, up to a fixed number.

A bounded buffer counts the calls that it holds, not those that were made: where a rank made one
more call on one communicator, it holds one fewer on another. In seed 003's table, for example,
every row adds up to 10,000. Such counts prove nothing. Windows must therefore be recognized, and
their calls need common numbers before any two ranks can be compared.

The numbers come from the contents. The calls of one communicator are often ambiguous: four hundred
equal calls match at any shift. Ranks that run the same program on the same data, such as the ranks
of a tensor-parallel group, are therefore compared in all their calls at once. They form a *cohort*,
and one shift between two of them numbers all of their communicators. Between cohorts, all shared
communicators vote.
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

Signatures = NDArray[np.uint64]

ALIKE = 0.9
"""Share of the overlapping calls that must agree for two ranks to belong to one cohort."""
ENOUGH = 0.25
"""Share of the shorter window that must overlap."""
COHORTS_TRIED = 16
CANDIDATES = 256
"""Shifts that are compared call by call."""


class WindowShift(NamedTuple):
    """The shift of one sequence against another.

    Attributes:
        start: Index in the first sequence at which the second begins; may be negative.
        agreeing: Number of calls that agree under this shift.
        overlap: Number of calls that both sequences have.
    """

    start: int
    agreeing: int
    overlap: int

    @property
    def score(self) -> int:
        """Number of calls that agree minus those that do not."""
        return 2 * self.agreeing - self.overlap


class PlacedLog(ListLog):
    """A window's calls on one communicator, with numbers that are common to all ranks.

    Args:
        communicator: The communicator.
        calls: Its calls, oldest first.
        first: Number of the first of them.
    """

    def __init__(self, communicator: Communicator, calls: Sequence[Call], first: int) -> None:
        if calls and calls[0].seq != first:
            calls = [replace(call, seq=seq) for seq, call in enumerate(calls, first)]
        super().__init__(communicator, calls, anchored=False)
        self.first = first


def infer_windows(ranks: Sequence[Rank]) -> list[Rank]:
    """Mark ranks that are windows without saying so, and number the calls of all windows.

    Ranks are windows if their calls are unnumbered and all ranks have the same total. Equal
    totals alone prove nothing: a rank that made 17 calls on the wrong communicator also has the
    same total. But full traces begin with the same calls on all ranks, while windows of programs
    at different positions do not.
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
    """Find the best shift between two sequences of signatures, ``[n]`` and ``[m]``.

    Under the best shift, most calls agree and fewest differ; of several such shifts, take the one
    closest to a common end. A Fourier transform tries all shifts at once: each signature maps to
    a direction in the plane, and the directions of agreeing calls add up.

    Returns:
        None where one of the sequences is empty.
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
    # Of equally good shifts, take the one with a common end: all ranks are recorded up to the same
    # time, and their traffic determines how far back each window reaches.
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
    """Return whether members of one communicator have different first calls and counts."""
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
        rank: The rank.
        calls: Its calls, by communicator key.
        names: By communicator key: its label, if unique on the rank, which communicators with the
            same role share; otherwise the key.
        contents: Signatures, by name.
        whole: Signatures of all calls, each combined with its communicator's name.
        order: Name of each call's communicator.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.calls = {
            key: list(log.span(log.first, log.calls + 1)) for key, log in rank.logs.items()
        }
        self.names = _names(rank.logs)
        self.contents = {
            self.names[key]: np.array([call.signature for call in calls], np.uint64)
            for key, calls in self.calls.items()
        }
        positions = [[call.position for call in calls] for calls in self.calls.values()]
        order = np.argsort(np.concatenate([np.array(own, np.int64) for own in positions]))
        indices = np.repeat(np.arange(len(positions)), [len(own) for own in positions])[order]
        self.order = [list(self.contents)[index] for index in indices]
        salts = np.array([_salt(name) for name in self.contents], np.uint64)
        self.whole = np.concatenate(list(self.contents.values()))[order] * np.uint64(BASE)
        self.whole += salts[indices]

    def before(self, place: int) -> Counter[str]:
        """Return how many calls of each communicator name come before an index."""
        return Counter(self.order[:place])


@dataclass
class _Cohort:
    """Ranks that run the same program on the same data.

    Attributes:
        members: The ranks; the others are compared with the first.
        offsets: For each member, by communicator name: number of calls before its first kept one,
            relative to the first member's window.
        base: By communicator name: number to add to the offsets, so that all cohorts agree.
    """

    members: list[_Stream]
    offsets: list[Mapping[str, int]]
    base: dict[str, int] = field(default_factory=dict)

    def take(self, stream: _Stream) -> bool:
        """Add a rank if its calls agree with the cohort's, and return whether they do."""
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
            else {name: -count for name, count in stream.before(-shift.start).items()}
        )
        return True

    def offset(self, member: int, name: str) -> int:
        """Return how many calls on a communicator precede the first one that a member kept."""
        return self.base.get(name, 0) + self.offsets[member].get(name, 0)


def _place(ranks: Sequence[Rank]) -> list[Rank]:
    """Give the calls of windows numbers that are common to all ranks."""
    cohorts: list[_Cohort] = []
    for rank in ranks:
        stream = _Stream(rank) if rank.logs else None
        tried = cohorts[:COHORTS_TRIED]
        if stream is not None and not any(cohort.take(stream) for cohort in tried):
            cohorts.append(_Cohort([stream], [{}]))
    for number, cohort in enumerate(cohorts):
        cohort.base = _vote(cohorts[:number], cohort)
    starts: dict[str, int] = {}
    for cohort in cohorts:
        for member, stream in enumerate(cohort.members):
            for name in stream.contents:
                offset = cohort.offset(member, name)
                starts[name] = min(offset, starts.get(name, offset))
    placed = {}
    for cohort in cohorts:
        for member, stream in enumerate(cohort.members):
            logs: dict[str, CallLog] = {}
            for key, name in stream.names.items():
                first = cohort.offset(member, name) - starts[name] + 1
                logs[key] = PlacedLog(stream.rank.logs[key].communicator, stream.calls[key], first)
            placed[id(stream.rank)] = replace(stream.rank, logs=logs)
    return [placed.get(id(rank), rank) for rank in ranks]


def _vote(placed: Iterable[_Cohort], cohort: _Cohort) -> dict[str, int]:
    """Return by communicator name the base of a cohort relative to the cohorts before it."""
    members: dict[str, tuple[_Stream, int]] = {}
    for other in placed:
        for place, stream in enumerate(other.members):
            for key, name in stream.names.items():
                members.setdefault(key, (stream, other.offset(place, name)))
    votes: dict[str, Counter[int]] = {}
    voted = set()
    for place, stream in enumerate(cohort.members):
        for key, name in stream.names.items():
            if key in voted or key not in members:
                continue
            peer, offset = members[key]
            shift = best_shift(peer.contents[peer.names[key]], stream.contents[name])
            if shift is not None:
                voted.add(key)
                base = offset + shift.start - cohort.offsets[place].get(name, 0)
                votes.setdefault(name, Counter())[base] += max(shift.score, 1)
    return {name: max(cast, key=lambda base: (cast[base], base)) for name, cast in votes.items()}


def _names(logs: Mapping[str, CallLog]) -> dict[str, str]:
    labels = Counter(log.communicator.label for log in logs.values())
    return {
        key: log.communicator.label if labels[log.communicator.label] == 1 else key
        for key, log in logs.items()
    }


def _salt(name: str) -> int:
    return int.from_bytes(name.encode()[:8].ljust(8, b"\0"), "little")
