"""What a ring holds besides collectives.

Steps, sends and receives are read when they are asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

from ncclscope.model import Activity, Call, Communicator, Step
from ncclscope.model.log import Trail
from ncclscope.readers.ring.calls import decode
from ncclscope.ring import layout
from ncclscope.ring.image import chosen
from ncclscope.ring.reader import CHUNK, RingFile

__all__ = ["STEP_CHUNKS", "RingSteps", "RingTransfers", "activities", "transfers"]

What = TypeVar("What")

STEP_CHUNKS = 4
"""Chunks of records at the end of a ring that the last step is looked for in."""


class _RingTrail(Trail[What]):
    """Some of the records of a ring; all are gone through once, for the last only from the end."""

    _within: int | None = None

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._all: list[What] | None = None

    @abstractmethod
    def _between(self, start: int, stop: int) -> list[What]:
        """Return those at positions ``start`` to ``stop - 1`` of the stream."""

    def newest(self, count: int) -> list[What]:
        """Return the last so many; only the end of the ring is gone through for them."""
        if self._all is not None:
            return self._all[max(0, len(self._all) - count) :]
        found: list[What] = []
        stop = self._ring.head
        looked = 0
        while stop > self._ring.oldest and len(found) < count:
            if self._within is not None and looked == self._within:
                break
            start = (stop - 1) // CHUNK * CHUNK
            found = self._between(start, stop) + found
            stop = start
            looked += 1
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
    """Sends and receives on one communicator."""

    def __init__(self, ring: RingFile, number: int, key: str) -> None:
        super().__init__(ring)
        self._number = number
        self._key = key

    def _between(self, start: int, stop: int) -> list[Call]:
        window = self._ring.window(start, stop)
        own = (window["comm"] == self._number) & (window["fixed"] & layout.FIXED_P2P != 0)
        return decode(self._ring, chosen(window, own), self._key)


def transfers(
    ring: RingFile, communicators: Mapping[int, Communicator]
) -> dict[str, RingTransfers]:
    """By the key of the communicator; there are some, though they may have been overwritten."""
    return {
        communicator.key: RingTransfers(ring, number, communicator.key)
        for number, communicator in communicators.items()
        if number in ring.states and ring.states[number].p2p
    }


class RingSteps(_RingTrail[Step]):
    """Steps of the engine.

    A ring does not know whether it holds any, and is not read whole to find the last.
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
            for record in chosen(window, window["fixed"] & layout.FIXED_STEP != 0)
        ]


def activities(ring: RingFile) -> dict[str, Activity]:
    """By name; none in a ring from before there were any."""
    found = {}
    for count, since, until, number, name, detail in ring.activities:
        named = ring.text(layout.KIND_ACTIVITY, name)
        if named is not None:
            said = ring.text(layout.KIND_ACTIVITY, detail)
            found[named] = Activity(named, said, number, count, since, until or None)
    return found
