"""Logs and trails of rings on other nodes, read by query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ncclscope.model import Call, Communicator
from ncclscope.model.log import Trail
from ncclscope.remote.checked import as_hash
from ncclscope.remote.fleet import Fleet, LostNodeError, Query
from ncclscope.remote.spelling import read_calls
from ncclscope.ring import layout

What = TypeVar("What")

_BLOCK = 256
"""Hashes requested together."""
_MARKS = 1 << 15
"""Most hashes at marks requested on each side: a hostile node can report any number of calls."""
_NEAR = 4
"""Extra calls requested on each side, since neighbours are often needed next."""
_TOGETHER = 64
"""Longest range of calls, in calls, that is requested from all members together."""


@dataclass(frozen=True)
class NodePlace:
    """Location of a ring: its node's number, and its own number on that node."""

    fleet: Fleet
    node: int
    ring: int

    def query(
        self, what: str, key: str | None, *rest: Any, take: Callable[[Any, Sequence[Any]], None]
    ) -> Query:
        """Return a query about a communicator of the ring, or about the ring if `key` is None."""
        return Query(self.node, (what, self.ring, key, *rest), take)


@dataclass
class Shared:
    """Data that the logs of one run share.

    Equal logs have the same communicator key, number of calls and running hash.

    Attributes:
        hashes: Running hashes by sequence number, for each class of equal logs.
        signatures: Signatures by sequence number, for each class of equal logs.
        logs: All logs of a communicator, by key.
        missed: Number of logs that lacked calls, by communicator and range.
    """

    hashes: dict[tuple[str, int, int], dict[int, int]] = field(default_factory=dict)
    signatures: dict[tuple[str, int, int], dict[int, int]] = field(default_factory=dict)
    logs: dict[str, list[RemoteLog]] = field(default_factory=dict)
    missed: dict[tuple[str, int], int] = field(default_factory=dict)


class RemoteLog:
    """A :class:`~ncclscope.model.CallLog` of a ring on another node.

    Args:
        place: Location of the ring.
        communicator: The communicator of the calls.
        ends: Number of calls made, first call kept, running hash at the end.
        calls: Calls that came with the summary.
        ops: Operations that the process has enqueued, on any communicator.
        shared: Data shared with the run's other logs.
    """

    anchored = True
    rooted = True

    def __init__(
        self,
        place: NodePlace,
        communicator: Communicator,
        ends: tuple[int, int, int],
        calls: Sequence[Call],
        ops: frozenset[str],
        shared: Shared,
    ) -> None:
        self.communicator = communicator
        self.calls, self.first, self._hash = ends
        self.ops = ops
        self._place = place
        self._calls = {call.seq: call for call in calls}
        self._shared = shared
        same = (communicator.key, self.calls, self._hash)
        self._hashes = shared.hashes.setdefault(same, {})
        self._signatures = shared.signatures.setdefault(same, {})
        shared.logs.setdefault(communicator.key, []).append(self)

    def fingerprint(self, seq: int) -> int:
        """Return the running hash after ``seq`` calls."""
        if seq == self.calls:
            return self._hash
        if seq == 0:
            return 0
        if seq not in self._hashes:
            self._ask_hashes(seq)
        return self._hashes[seq]

    def call(self, seq: int) -> Call:
        """Return call number ``seq``."""
        if not self.first <= seq <= self.calls:
            raise IndexError(f"call {seq} on {self.communicator.label} has been overwritten")
        return self.span(seq, seq + 1)[0]

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Return those of calls ``start`` to ``stop - 1`` that are kept."""
        start, stop = max(start, self.first), min(stop, self.calls + 1)
        if any(seq not in self._calls for seq in range(start, stop)):
            self._ask_calls(start, stop)
        try:
            return [self._calls[seq] for seq in range(start, stop)]
        except KeyError as error:
            raise LostNodeError(
                self._place.node,
                f"call {error} of {self.communicator.label} is missing in its node's answer",
            ) from None

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Return the signatures of calls ``start`` to ``stop - 1``."""
        start, stop = max(start, self.first), min(stop, self.calls + 1)
        lacking = [
            seq
            for seq in range(start, stop)
            if seq not in self._signatures and seq not in self._calls
        ]
        if lacking:
            low, high = lacking[0], lacking[-1] + 1

            def take(answer: Any, _kinds: Sequence[Any]) -> None:
                self._signatures.update(zip(range(low, high), map(as_hash, answer), strict=True))

            self._ask("signatures", low, high, take=take)
        return [
            self._calls[seq].signature if seq in self._calls else self._signatures[seq]
            for seq in range(start, stop)
        ]

    def sites(self, start: int, stop: int) -> Sequence[str | None]:
        """Return the call sites of calls ``start`` to ``stop - 1``."""
        return [call.site for call in self.span(start, stop)]

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return the positions of calls ``start`` to ``stop - 1`` in the rank's stream."""
        return [call.position for call in self.span(start, stop)]

    def threads(self, start: int, stop: int) -> Sequence[int]:
        """Return the threads that posted calls ``start`` to ``stop - 1``; 0: not known."""
        return [call.thread for call in self.span(start, stop)]

    # --- querying ----------------------------------------------------------------------------

    def _ask_hashes(self, seq: int) -> None:
        """Request the hashes around a call; at a mark, request the hashes at all marks."""
        low, high = max(self.first - 1, 0), self.calls
        every = layout.MARK_EVERY
        if seq % every == 0:
            marks = range(-(-low // every) * every, high + 1, every)
            near = marks.index(seq) if seq in marks else 0
            seqs = list(marks[max(near - _MARKS, 0) : near + _MARKS])
        else:
            start = seq // _BLOCK * _BLOCK
            seqs = list(range(max(start, low), min(start + _BLOCK, high + 1)))

        def take(answer: Any, _kinds: Sequence[Any]) -> None:
            found = {
                s: as_hash(hash) for s, hash in zip(seqs, answer, strict=True) if hash is not None
            }
            self._hashes.update(found)
            if seq not in found:
                raise ValueError

        self._ask("hashes", seqs, take=take)

    def _ask_calls(self, start: int, stop: int) -> None:
        """Request calls; if another log lacked the same range, request it for all members."""
        part = (self.communicator.key, start // _TOGETHER)
        self._shared.missed[part] = self._shared.missed.get(part, 0) + 1
        low, high = max(start - _NEAR, self.first), min(stop + _NEAR, self.calls + 1)
        asked = [self._want(low, high)]
        if self._shared.missed[part] > 1 and stop - start <= _TOGETHER:
            asked += [
                log._want(max(start, log.first), min(stop, log.calls + 1))
                for log in self._shared.logs[self.communicator.key]
                if log is not self and log._lacks(start, stop)
            ]
        self._place.fleet.ask(asked)

    def _lacks(self, start: int, stop: int) -> bool:
        start, stop = max(start, self.first), min(stop, self.calls + 1)
        return any(seq not in self._calls for seq in range(start, stop))

    def _want(self, start: int, stop: int) -> Query:
        key = self.communicator.key

        def take(answer: Any, kinds: Sequence[Any]) -> None:
            for call in read_calls(answer, kinds, key):
                self._calls.setdefault(call.seq, call)

        return self._place.query("calls", key, start, stop, take=take)

    def _ask(self, what: str, *rest: Any, take: Callable[[Any, Sequence[Any]], None]) -> None:
        query = self._place.query(what, self.communicator.key, *rest, take=take)
        self._place.fleet.ask([query])


class RemoteTrail(Trail[What]):
    """Steps or transfers of a ring on another node.

    Args:
        place: Location of the ring.
        key: Key of the communicator of transfers; None for steps.
        last: The newest item, which came with the summary; empty if there is none.
        read: Decode items from an answer and the table of kinds.
    """

    def __init__(
        self,
        place: NodePlace,
        key: str | None,
        last: Sequence[What],
        read: Callable[[Any, Sequence[Any]], list[What]],
    ) -> None:
        self._place = place
        self._key = key
        self._read = read
        self._newest: dict[int, Sequence[What]] = {1: last}
        self._all: list[What] | None = None

    def newest(self, count: int) -> Sequence[What]:
        """Return the last `count` items, oldest first."""
        if count not in self._newest:
            self._newest[count] = self._ask(count)
        return self._newest[count]

    def _ask(self, count: int | None) -> list[What]:
        found: list[What] = []

        def take(answer: Any, kinds: Sequence[Any]) -> None:
            found.extend(self._read(answer, kinds))

        self._place.fleet.ask([self._place.query("newest", self._key, count, take=take)])
        return found

    def _everything(self) -> list[What]:
        if self._all is None:
            self._all = self._ask(None)
        return self._all

    def __getitem__(self, index: Any) -> Any:
        return self._everything()[index]

    def __len__(self) -> int:
        return len(self._everything())
