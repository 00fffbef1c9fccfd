"""Call sequences held in memory, for input that has to be read whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ncclscope.model.call import Call, Communicator
from ncclscope.model.log import CallLog
from ncclscope.model.signature import BASE, BASE_INVERSE

__all__ = ["ListLog", "Tail", "running_hashes"]


def running_hashes(signatures: Sequence[int]) -> list[int]:
    """Returns the running hash before each call and after the last one.

    Horner's scheme in one sweep: divide each signature by the power of the base it will
    have been multiplied with too little, add up, multiply back; all modulo 2 ** 64.
    """
    count = len(signatures)
    if not count:
        return [0]
    values = np.array(signatures, dtype=np.uint64)
    powers = np.cumprod(np.full(count, BASE, np.uint64))
    inverses = np.cumprod(np.full(count, BASE_INVERSE, np.uint64))
    return [0, *(np.cumsum(values * inverses) * powers).tolist()]


class ListLog:
    """A :class:`~ncclscope.model.CallLog` over a list.

    Args:
        communicator: What the calls were made on.
        calls: In order, with consecutive sequence numbers.
        anchored: Whether call 1 was the first ever made on the communicator.
        made: How many were made, where none of them is kept.
    """

    def __init__(
        self,
        communicator: Communicator,
        calls: Sequence[Call],
        *,
        anchored: bool = True,
        made: int = 0,
    ) -> None:
        self.communicator = communicator
        self.anchored = anchored
        self._calls = calls
        self.first = calls[0].seq if calls else made + 1
        self.rooted = anchored and self.first == 1
        self._hashes = running_hashes([call.signature for call in calls])

    @property
    def calls(self) -> int:
        """Calls made."""
        return self.first - 1 + len(self._calls)

    def fingerprint(self, seq: int) -> int:
        """Running hash after ``seq`` calls."""
        return self._hashes[seq - self.first + 1]

    def call(self, seq: int) -> Call:
        """The call number ``seq``."""
        return self._calls[seq - self.first]

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Calls ``start`` to ``stop - 1``, as far as they are kept."""
        low = max(start - self.first, 0)
        return self._calls[low : max(stop - self.first, low)]

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Signatures of calls ``start`` to ``stop - 1``."""
        return [call.signature for call in self.span(start, stop)]

    def sites(self, start: int, stop: int) -> Sequence[str | None]:
        """Call sites of calls ``start`` to ``stop - 1``."""
        return [call.site for call in self.span(start, stop)]

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Numbers of calls ``start`` to ``stop - 1`` in the rank's stream."""
        return [call.position for call in self.span(start, stop)]


class Tail:
    """A log from one call on, as if nothing before it were kept."""

    rooted = False

    def __init__(self, log: CallLog, start: int) -> None:
        self._log = log
        self.first = max(log.first, start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Relabelled:
    """A log as it is, on a communicator that is described differently."""

    def __init__(self, log: CallLog, communicator: Communicator) -> None:
        self._log = log
        self.communicator = communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
