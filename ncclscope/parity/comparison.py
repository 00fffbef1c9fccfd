"""Comparison of two ranks, or of two runs rank by rank, call by call on each communicator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ncclscope.engine.sequences.align import align_windows
from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.model.log import CallLog
from ncclscope.model.signature import VECTOR_OPS
from ncclscope.parity.changes import Change, changes
from ncclscope.parity.folding import fold
from ncclscope.parity.hunks import folded_calls
from ncclscope.parity.sequence import CallStream, Vocabulary
from ncclscope.progress import steps

ACROSS = "all communicators"
"""Role of the comparison of all calls in the order of posting."""

_BEFORE = {
    True: ", and they were the same",
    False: "; their running hashes differ",
    None: " and are not compared",
}
_UNSEEN = "sizes of uneven collectives have been overwritten; their running hashes differ"


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        comm: The communicator; None if this side has none of that role.
        calls: Compared calls.
        lines: The same calls, as numbers of the vocabulary.
        first: Sequence number of the first of them.
        total: Calls posted on the communicator, kept or overwritten.
    """

    comm: Communicator | None
    calls: Sequence[Call] = field(default=(), repr=False)
    lines: Sequence[int] = field(default=(), repr=False)
    first: int = 1
    total: int = 0


@dataclass(frozen=True)
class CommDifference:
    """Comparison of one communicator's calls on both sides.

    Attributes:
        role: Role of the communicator, such as ``tp``.
        a: One side.
        b: The other side.
        changes: Changes that turn ``a`` into ``b``, by index in :attr:`Side.calls`.
        notes: Sentences on calls that could not be compared.
        same: Whether all calls agree, kept or overwritten.
    """

    role: str
    a: Side
    b: Side
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    same: bool = True

    @property
    def deleted(self) -> int:
        """Count the calls that only the first side has."""
        return sum(change.a_stop - change.a_start for change in self.changes)

    @property
    def inserted(self) -> int:
        """Count the calls that only the second side has."""
        return sum(change.b_stop - change.b_start for change in self.changes)

    def to_dict(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the comparison for JSON; ``texts`` are those of the vocabulary."""
        return {
            "role": self.role,
            "same": self.same,
            "a": _side_dict(self.a),
            "b": _side_dict(self.b),
            "deleted": self.deleted,
            "inserted": self.inserted,
            "hunks": [self._hunk(change, texts) for change in self.changes],
            "notes": list(self.notes),
        }

    def _hunk(self, change: Change, texts: Sequence[str]) -> dict[str, Any]:
        places = (("a", self.a, *change[:2]), ("b", self.b, *change[2:]))
        return {
            name: {
                "seq": side.first + low,
                "count": high - low,
                "calls": folded_calls(fold(side.lines[low:high]), texts),
                "first": side.calls[low].to_dict() if low < high else None,
            }
            for name, side, low, high in places
        }


def _side_dict(side: Side) -> dict[str, Any]:
    return {
        "comm": None if side.comm is None else side.comm.to_dict(),
        "calls": side.total,
        "first_compared": side.first,
    }


@dataclass(frozen=True)
class RankPair:
    """Comparison of one rank on both sides.

    Attributes:
        a: The rank on one side; None if only the other side has it.
        b: The rank on the other side.
        differences: Comparisons, one per communicator, equal ones included.
    """

    a: Rank | None
    b: Rank | None
    differences: tuple[CommDifference, ...] = ()

    @property
    def same(self) -> bool:
        """Whether both sides made the same calls."""
        both = self.a is not None and self.b is not None
        return both and all(difference.same for difference in self.differences)

    def pattern(self) -> tuple[object, ...]:
        """Return a key that is equal for pairs with the same differences."""
        return (
            self.a is None,
            self.b is None,
            *(
                (one.role, one.a.total, one.b.total, one.changes, one.notes, *_changed(one))
                for one in self.differences
            ),
        )

    def to_dict(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the pair for JSON; ``texts`` are those of the vocabulary."""
        return {
            "a": None if self.a is None else _rank_dict(self.a),
            "b": None if self.b is None else _rank_dict(self.b),
            "same": self.same,
            "comms": [difference.to_dict(texts) for difference in self.differences],
        }


def _changed(one: CommDifference) -> tuple[object, ...]:
    return tuple(
        (*one.a.lines[change.a_start : change.a_stop], *one.b.lines[change.b_start : change.b_stop])
        for change in one.changes
    )


def _rank_dict(rank: Rank) -> dict[str, Any]:
    return {"rank": rank.rank, "host": rank.host, "pid": rank.pid, "source": rank.source}


def compare_runs(a: Run, b: Run, words: Vocabulary, *, shapes: bool = True) -> list[RankPair]:
    """Compare each rank of a run with the same rank of another run.

    Args:
        a: One run.
        b: Another run of the same program.
        words: Vocabulary that collects the spelled calls.
        shapes: Whether to compare tensor sizes.
    """
    ours, theirs = a.by_rank, b.by_rank
    numbers = steps("comparing", sorted({*ours, *theirs}))
    both = ((ours.get(number), theirs.get(number)) for number in numbers)
    return [
        compare_ranks(one, other, words, shapes=shapes) if one and other else RankPair(one, other)
        for one, other in both
    ]


def compare_ranks(
    a: Rank, b: Rank, words: Vocabulary, *, shapes: bool = True, p2p: bool = True
) -> RankPair:
    """Compare the calls of two ranks.

    Args:
        a: One rank.
        b: The other rank.
        words: Vocabulary that collects the spelled calls.
        shapes: Whether to compare tensor sizes.
        p2p: Whether to compare sends and receives; those of two ranks of one run differ.
    """
    ours, theirs = CallStream(a, p2p=p2p), CallStream(b, p2p=p2p)
    comparison = _Comparison(ours, theirs, words, shapes)
    found = []
    for role, one, other in _paired(ours, theirs):
        found.append(comparison.collectives(role, one, other))
        if p2p:
            found += comparison.messages(role, one, other)
    if not any(difference.notes for difference in found):
        # Only the order of all calls shows which of a thousand equal calls is missing.
        found += comparison.order()
    return RankPair(a, b, tuple(found))


def _paired(a: CallStream, b: CallStream) -> list[tuple[str, str | None, str | None]]:
    """Return roles with the key of the communicator on each side, or None.

    Communicators are paired by key, as ranks of one run share them, and otherwise by role.
    """
    pairs: list[tuple[str, str | None, str | None]] = []
    left = {role: key for key, role in b.roles.names.items() if key not in a.roles.names}
    for key, role in a.roles.names.items():
        # A member may not have posted anything there.
        if key in b.roles.names or key in b.rank.logs:
            pairs.append((role, key, key))
        else:
            pairs.append((role, key, left.pop(role, None)))
    for role, key in left.items():
        pairs.append((role, key if key in a.rank.logs else None, key))
    return pairs


class _Comparison:
    """Comparison of two streams, with a common vocabulary."""

    def __init__(self, a: CallStream, b: CallStream, words: Vocabulary, shapes: bool) -> None:
        self.a = a
        self.b = b
        self.words = words
        self.shapes = shapes

    def collectives(self, role: str, ours: str | None, theirs: str | None) -> CommDifference:
        """Compare the collectives of two communicators.

        Args:
            role: Role of the communicators.
            ours: Key of the communicator of ``a``; None if it has none.
            theirs: Key of the communicator of ``b``; None if it has none.
        """
        one, other = _log(self.a.rank, ours), _log(self.b.rank, theirs)
        if one is None or other is None:
            sides = [
                Side(log.communicator, *self._calls(stream, log, log.first), log.first, log.calls)
                if log is not None
                else Side(None)
                for stream, log in ((self.a, one), (self.b, other))
            ]
            return _difference(role, sides[0], sides[1], [])
        notes: list[str] = []
        if not (one.anchored and other.anchored):
            aligned = align_windows({0: one, 1: other})
            one, other = aligned[0], aligned[1]
            notes.append("only the last calls are kept: compared from the first common one")
        first = max(one.first, other.first)
        same_before: bool | None = True
        if first > 1 and one.anchored and other.anchored:
            same_before = _same_before(one, other, first)
            notes.append(f"calls before #{first} have been overwritten{_BEFORE[same_before]}")
        a = Side(one.communicator, *self._calls(self.a, one, first), first, one.calls)
        b = Side(other.communicator, *self._calls(self.b, other, first), first, other.calls)
        found = _difference(role, a, b, notes, same_before=same_before is not False)
        if found.same and self.shapes and _differ_unseen(one, other, (self.a, self.b)):
            return replace(found, same=False, notes=(*notes, _UNSEEN))
        return found

    def messages(self, role: str, ours: str | None, theirs: str | None) -> list[CommDifference]:
        """Compare sends and receives; return nothing if there are none.

        Args:
            role: Role of the communicators.
            ours: Key of the communicator of ``a``; None if it has none.
            theirs: Key of the communicator of ``b``; None if it has none.
        """
        sides = []
        for stream, key in ((self.a, ours), (self.b, theirs)):
            calls = stream.rank.p2p.get(key, ()) if key is not None else ()
            comm = stream.communicator(key) if key is not None else None
            lines = self._lines(stream, calls)
            sides.append(Side(comm, calls, lines, total=len(calls)))
        if not any(side.calls for side in sides):
            return []
        return [_difference(f"{role} send/recv", sides[0], sides[1], [])]

    def order(self) -> list[CommDifference]:
        """Compare all calls in the order of posting, if there are several communicators."""
        sides = []
        for stream in (self.a, self.b):
            if len(stream.roles.names) < 2:
                return []
            lines = stream.lines(self.words, shapes=self.shapes)
            sides.append(Side(None, stream.calls, lines, total=len(lines)))
        found = _difference(ACROSS, sides[0], sides[1], [])
        return [] if found.same else [found]

    def _calls(
        self, stream: CallStream, log: CallLog, first: int
    ) -> tuple[Sequence[Call], Sequence[int]]:
        key = log.communicator.key
        if stream.rank.logs.get(key) is log:
            gone = first - log.first
            lines = stream.lines_on(key, self.words, shapes=self.shapes)
            return stream.on(key)[gone:], lines[gone:]
        calls = log.span(first, log.calls + 1)
        return calls, self._lines(stream, calls)

    def _lines(self, stream: CallStream, calls: Sequence[Call]) -> list[int]:
        return [self.words.number(stream.spell(call, shapes=self.shapes)) for call in calls]


def _log(rank: Rank, key: str | None) -> CallLog | None:
    return None if key is None else rank.logs.get(key)


def _differ_unseen(one: CallLog, other: CallLog, streams: Sequence[CallStream]) -> bool:
    """Return whether equal calls differ in sizes that have been overwritten."""
    keys = {one.communicator.key, other.communicator.key}
    gone = any(
        kind.op in VECTOR_OPS and kind.sizes is None and kind.comm in keys
        for stream in streams
        for kind in stream.kinds
    )
    return gone and _same_before(one, other, min(one.calls, other.calls) + 1) is False


def _same_before(one: CallLog, other: CallLog, first: int) -> bool | None:
    """Return whether the calls before ``first`` agree; None without running hashes."""
    if not (one.rooted and other.rooted) or min(one.calls, other.calls) < first - 1:
        return None
    return one.fingerprint(first - 1) == other.fingerprint(first - 1)


def _difference(
    role: str, a: Side, b: Side, notes: list[str], *, same_before: bool = True
) -> CommDifference:
    found = tuple(changes(a.lines, b.lines))
    return CommDifference(role, a, b, found, tuple(notes), same_before and not found)
