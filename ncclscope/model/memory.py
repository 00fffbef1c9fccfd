"""Call logs held in memory, for input that has to be read completely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncclscope.model.call import Call, Communicator
from ncclscope.model.log import CallLog
from ncclscope.model.signature import BASE, BASE_INVERSE


def running_hashes(signatures: Sequence[int]) -> list[int]:
    """Return the running hashes before each of ``n`` calls and after the last: ``[n + 1]``."""
    hashes: list[int] = chained_hashes(np.array(signatures, dtype=np.uint64)).tolist()
    return hashes


def chained_hashes(signatures: NDArray[np.uint64], before: int = 0) -> NDArray[np.uint64]:
    """Return the running hashes before each of ``n`` calls and after the last: ``[n + 1]``.

    Horner's scheme, vectorized: multiply each signature by an inverse power of the base, add up,
    and multiply by the power of the base; all modulo 2 ** 64.

    Args:
        signatures: Signatures, ``[n]``.
        before: Running hash before the first call.
    """
    count = len(signatures)
    hashes = np.empty(count + 1, np.uint64)
    hashes[0] = before
    sums = np.cumsum(signatures * np.cumprod(np.full(count, BASE_INVERSE, np.uint64)))
    hashes[1:] = (sums + hashes[0]) * np.cumprod(np.full(count, BASE, np.uint64))
    return hashes


class ListLog:
    """A :class:`~ncclscope.model.CallLog` over a list.

    Args:
        communicator: The communicator of the calls.
        calls: The calls in order, with consecutive sequence numbers.
        anchored: Whether call 1 was the first ever made on the communicator.
        made: Number of calls made, where none of them is kept.
        signatures: Signatures of the calls, where they are known without reading the calls.
    """

    def __init__(
        self,
        communicator: Communicator,
        calls: Sequence[Call],
        *,
        anchored: bool = True,
        made: int = 0,
        signatures: Sequence[int] | None = None,
    ) -> None:
        self.communicator = communicator
        self.anchored = anchored
        self._calls = calls
        self.first = calls[0].seq if calls else made + 1
        self.rooted = anchored and self.first == 1
        self._signatures = [c.signature for c in calls] if signatures is None else signatures
        self._hashes = running_hashes(self._signatures)

    @property
    def calls(self) -> int:
        """Number of calls made."""
        return self.first - 1 + len(self._calls)

    def fingerprint(self, seq: int) -> int:
        """Return the running hash after ``seq`` calls."""
        return self._hashes[seq - self.first + 1]

    def call(self, seq: int) -> Call:
        """Return call number ``seq``."""
        return self._calls[seq - self.first]

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Return the calls in ``[start, stop)``, as far as they are kept."""
        low = max(start - self.first, 0)
        return self._calls[low : max(stop - self.first, low)]

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Return the signatures of the calls in ``[start, stop)``."""
        low = max(start - self.first, 0)
        return self._signatures[low : max(stop - self.first, low)]

    def sites(self, start: int, stop: int) -> Sequence[str | None]:
        """Return the sites of the calls in ``[start, stop)``."""
        return [call.site for call in self.span(start, stop)]

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return the numbers of the calls in ``[start, stop)`` in the rank's stream."""
        return [call.position for call in self.span(start, stop)]

    def threads(self, start: int, stop: int) -> Sequence[int]:
        """Return the thread that posted each of the calls in ``[start, stop)``; 0: not known."""
        return [call.thread for call in self.span(start, stop)]


class Tail:
    """A log from one call on, as if earlier calls had been overwritten."""

    rooted = False

    def __init__(self, log: CallLog, start: int) -> None:
        self._log = log
        self.first = max(log.first, start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Relabelled:
    """An unchanged log with another description of its communicator."""

    def __init__(self, log: CallLog, communicator: Communicator) -> None:
        self._log = log
        self.communicator = communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Rooted(Relabelled):
    """The same, whose calls know the global ranks of their roots."""

    def _own(self, call: Call) -> Call:
        return call.with_root(self.communicator.ranks)

    def call(self, seq: int) -> Call:
        """Return call number ``seq``."""
        return self._own(self._log.call(seq))

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Return the calls in ``[start, stop)``, as far as they are kept."""
        return [self._own(call) for call in self._log.span(start, stop)]


class Renamed(Rooted):
    """A log with another key, which its calls have, too."""

    def _own(self, call: Call) -> Call:
        return replace(call, comm=self.communicator.key)
