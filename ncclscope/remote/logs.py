"""Logs and trails whose answers are on another node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator
from ncclscope.model.log import Trail
from ncclscope.remote.fleet import Fleet, Query
from ncclscope.remote.spelling import read_calls
from ncclscope.ring import layout

__all__ = ["NodePlace", "RemoteLog", "RemoteTrail", "Shared"]

What = TypeVar("What")

_BLOCK = 256
"""Hashes that are asked for together."""
_NEAR = 4
"""Calls on both sides of one that is asked for: whoever wants it often wants them, too."""
_TOGETHER = 64
"""The longest part of a log that is asked of all members together."""


@dataclass(frozen=True)
class NodePlace:
    """Where a ring is: its node, and its number there."""

    fleet: Fleet
    node: int
    ring: int


@dataclass
class Shared:
    """What the logs of one run share.

    Attributes:
        hashes: Running hashes by number, of each class of equal logs.
        signatures: Likewise.
        logs: All logs of a communicator.
        missed: Logs that lacked calls of a part of a communicator.
    """

    hashes: dict[tuple[str, int, int], dict[int, int]] = field(default_factory=dict)
    signatures: dict[tuple[str, int, int], dict[int, int]] = field(default_factory=dict)
    logs: dict[str, list[RemoteLog]] = field(default_factory=dict)
    missed: dict[tuple[str, int], int] = field(default_factory=dict)


class RemoteLog:
    """A :class:`~ncclscope.model.CallLog` of a ring on another node.

    Args:
        place: Where the ring is.
        communicator: What the calls were made on.
        told: Calls made, first call kept, running hash at the end.
        calls: Those that came with the summary.
        ops: Operations that the process has posted, on any communicator.
        shared: What other logs have been told.
    """

    anchored = True
    rooted = True

    def __init__(
        self,
        place: NodePlace,
        communicator: Communicator,
        told: tuple[int, int, int],
        calls: Sequence[Call],
        ops: frozenset[str],
        shared: Shared,
    ) -> None:
        self.communicator = communicator
        self.calls, self.first, self._hash = told
        self.ops = ops
        self._place = place
        self._calls = {call.seq: call for call in calls}
        self._shared = shared
        same = (communicator.key, self.calls, self._hash)
        self._hashes = shared.hashes.setdefault(same, {})
        self._signatures = shared.signatures.setdefault(same, {})
        shared.logs.setdefault(communicator.key, []).append(self)

    def fingerprint(self, seq: int) -> int:
        """Return running hash after ``seq`` calls."""
        if seq == self.calls:
            return self._hash
        if seq == 0:
            return 0
        if seq not in self._hashes:
            self._ask_hashes(seq)
        return self._hashes[seq]

    def call(self, seq: int) -> Call:
        """Return the call number ``seq``."""
        if not self.first <= seq <= self.calls:
            raise IndexError(f"call {seq} on {self.communicator.label} is not kept")
        return self.span(seq, seq + 1)[0]

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Calls ``start`` to ``stop - 1``, as far as they are kept."""
        start, stop = max(start, self.first), min(stop, self.calls + 1)
        if any(seq not in self._calls for seq in range(start, stop)):
            self._ask_calls(start, stop)
        try:
            return [self._calls[seq] for seq in range(start, stop)]
        except KeyError as error:
            raise DamagedFileError(
                f"call {error} of {self.communicator.label} is not in its place"
            ) from None

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Return signatures of calls ``start`` to ``stop - 1``."""
        start, stop = max(start, self.first), min(stop, self.calls + 1)
        lacking = [
            seq
            for seq in range(start, stop)
            if seq not in self._signatures and seq not in self._calls
        ]
        if lacking:
            low, high = lacking[0], lacking[-1] + 1

            def take(answer: Any, _kinds: Sequence[Any]) -> None:
                self._signatures.update(zip(range(low, high), answer, strict=True))

            self._ask("signatures", low, high, take=take)
        return [
            self._calls[seq].signature if seq in self._calls else self._signatures[seq]
            for seq in range(start, stop)
        ]

    def sites(self, start: int, stop: int) -> Sequence[str | None]:
        """Return where calls ``start`` to ``stop - 1`` came from."""
        return [call.site for call in self.span(start, stop)]

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return numbers of calls ``start`` to ``stop - 1`` in the rank's stream."""
        return [call.position for call in self.span(start, stop)]

    # --- asking ------------------------------------------------------------------------------

    def _ask_hashes(self, seq: int) -> None:
        """Ask for the hashes around a call; for one at a mark, for those at all marks."""
        low, high = max(self.first - 1, 0), self.calls
        every = layout.MARK_EVERY
        if seq % every == 0:
            seqs = list(range(-(-low // every) * every, high + 1, every))
        else:
            start = seq // _BLOCK * _BLOCK
            seqs = list(range(max(start, low), min(start + _BLOCK, high + 1)))

        def take(answer: Any, _kinds: Sequence[Any]) -> None:
            found = {s: told for s, told in zip(seqs, answer, strict=True) if told is not None}
            self._hashes.update(found)
            if seq not in found:
                raise ValueError

        self._ask("hashes", seqs, take=take)

    def _ask_calls(self, start: int, stop: int) -> None:
        """Ask for calls; where others have lacked the same, for those of all members."""
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

        place = self._place
        return Query(place.node, ("calls", place.ring, key, start, stop), take)

    def _ask(self, what: str, *rest: Any, take: Callable[[Any, Sequence[Any]], None]) -> None:
        place = self._place
        words = (what, place.ring, self.communicator.key, *rest)
        place.fleet.ask([Query(place.node, words, take)])


class RemoteTrail(Trail[What]):
    """Steps or transfers of a ring on another node.

    Args:
        place: Where the ring is.
        key: The communicator's; None of steps.
        last: The newest, which came with the summary; empty where there is none.
        read: Makes them of an answer and the table of kinds.
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
        """Return the last so many, oldest first."""
        if count not in self._newest:
            self._newest[count] = self._ask(count)
        return self._newest[count]

    def _ask(self, count: int | None) -> list[What]:
        found: list[What] = []
        place = self._place

        def take(answer: Any, kinds: Sequence[Any]) -> None:
            found.extend(self._read(answer, kinds))

        place.fleet.ask([Query(place.node, ("newest", place.ring, self._key, count), take)])
        return found

    def _everything(self) -> list[What]:
        if self._all is None:
            self._all = self._ask(None)
        return self._all

    def __getitem__(self, index: Any) -> Any:
        return self._everything()[index]

    def __len__(self) -> int:
        return len(self._everything())
