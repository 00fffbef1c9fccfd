"""Steps, sends, receives and activities of a ring; decoded on demand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

from ncclscope.model import Activity, Call, Communicator, DamagedCall, Step
from ncclscope.model.log import Trail
from ncclscope.readers.ring.calls import decode
from ncclscope.ring import layout
from ncclscope.ring.image import chosen
from ncclscope.ring.reader import CHUNK, RingFile
from ncclscope.untrusted import text

_STEP_OR_UNSENT = layout.FIXED_STEP | layout.FIXED_UNSENT

What = TypeVar("What")

STEP_CHUNKS = 4
"""Number of chunks at the end of a ring in which the last step is searched."""


class _RingTrail(Trail[What]):
    """One kind of a ring's records, scanned once; for the newest, only from the end."""

    _within: int | None = None

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._all: list[What] | None = None

    @abstractmethod
    def _between(self, start: int, stop: int) -> list[What]:
        """Return the items at positions ``start`` to ``stop - 1`` of the stream."""

    def newest(self, count: int) -> list[What]:
        """Return the last `count` items, oldest first, scanning only the end of the ring."""
        if self._all is not None:
            return self._all[max(0, len(self._all) - count) :]
        found: list[What] = []
        stop = self._ring.head
        scanned = 0
        while stop > self._ring.oldest and len(found) < count:
            if self._within is not None and scanned == self._within:
                break
            start = (stop - 1) // CHUNK * CHUNK
            found = self._between(start, stop) + found
            stop = start
            scanned += 1
        return found[max(0, len(found) - count) :]

    def _read(self) -> list[What]:
        if self._all is None:
            self._all = []
            for start in range(self._ring.oldest, self._ring.head, CHUNK):
                self._all += self._between(start, start + CHUNK)
        return self._all

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __len__(self) -> int:
        return len(self._read())


class RingTransfers(_RingTrail[Call]):
    """Sends and receives on one communicator.

    Args:
        ring: The ring.
        number: Number of the communicator in the ring.
        key: Key of the communicator.
    """

    def __init__(self, ring: RingFile, number: int, key: str) -> None:
        super().__init__(ring)
        self._number = number
        self._key = key

    def _between(self, start: int, stop: int) -> list[Call]:
        window = self._ring.window(start, stop)
        own = (window["comm"] == self._number) & (window["fixed"] & layout.FIXED_P2P != 0)
        if self._number in self._ring.since:
            own &= window["begin"] > self._ring.since[self._number]
        return decode(self._ring, chosen(window, own), self._key)

    def _damaged(self, seq: int, near: Call) -> DamagedCall:
        return DamagedCall(near.op, self._key, seq, near.position)

    def _read(self) -> list[Call]:
        """Read all; a damaged call fills each gap in their numbers."""
        if self._all is None:
            found = super()._read()
            before = 0 if self._ring.oldest == 0 else found[0].seq - 1 if found else 0
            self._all = []
            for call in found:
                if call.seq != before + 1:
                    self._all.append(self._damaged(before + 1, call))
                self._all.append(call)
                before = call.seq
            if found and before < self._ring.states[self._number].p2p:
                self._all.append(self._damaged(before + 1, found[-1]))
        return self._all


def transfers(
    ring: RingFile, communicators: Mapping[int, Communicator]
) -> dict[str, RingTransfers]:
    """Return trails by communicator key, for communicators with sends or receives.

    The records themselves may have been overwritten.
    """
    return {
        communicator.key: RingTransfers(ring, number, communicator.key)
        for number, communicator in communicators.items()
        if number in ring.states and ring.states[number].p2p
    }


class RingSteps(_RingTrail[Step]):
    """Steps of the engine.

    A ring does not count its steps, so the search for the last step covers only its end.
    """

    _within = STEP_CHUNKS

    def _between(self, start: int, stop: int) -> list[Step]:
        window = self._ring.window(start, stop)
        return [
            Step(
                number=int(record["seq"]),
                position=(int(record["begin"]) - 1) * self._ring.scale,
                tokens=int(record["numel"]) - 1 if record["numel"] else None,
                dummy=bool(record["fixed"] & layout.FIXED_DUMMY),
            )
            for record in chosen(window, window["fixed"] & _STEP_OR_UNSENT == layout.FIXED_STEP)
        ]


def activities(ring: RingFile) -> dict[str, Activity]:
    """Return the activities by name; empty for a ring of an older format."""
    found = {}
    for count, since, until, number, name, detail in ring.activities:
        named = text(ring.text(layout.KIND_ACTIVITY, name))
        if named is not None:
            about = text(ring.text(layout.KIND_ACTIVITY, detail))
            found[named] = Activity(named, about, number, count, since, until or None)
    return found
