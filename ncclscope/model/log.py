"""Interfaces to the calls of a rank, in order, that can be read in parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ncclscope.model.call import Call, Communicator

What = TypeVar("What")


class Trail(Sequence[What]):
    """Steps or transfers of one rank, oldest first, whose newest items can be read alone."""

    @abstractmethod
    def newest(self, count: int) -> Sequence[What]:
        """Return the newest ``count`` items, oldest first; fewer where fewer are recent."""


def last_of(recorded: Sequence[What]) -> What | None:
    """Return the newest recorded item; None where there is none."""
    found = newest_of(recorded, 1)
    return found[-1] if found else None


def newest_of(recorded: Sequence[What], count: int) -> Sequence[What]:
    """Return the newest ``count`` recorded items, oldest first; fewer where there are fewer."""
    if isinstance(recorded, Trail):
        return recorded.newest(count)
    return recorded[max(0, len(recorded) - count) :]


class CallLog(Protocol):
    """The collectives of one rank on one communicator, in order.

    ``calls`` counts all calls that were made; the first ``first - 1`` of them have been
    overwritten. In a log that is not ``anchored`` even their number is unknown: ``first`` is 1,
    and sequence numbers are valid only within the log.
    """

    @property
    def communicator(self) -> Communicator: ...

    @property
    def calls(self) -> int:
        """Number of calls made, kept or not."""
        ...

    @property
    def first(self) -> int:
        """Sequence number of the first call that is kept; ``calls + 1`` when none is."""
        ...

    @property
    def anchored(self) -> bool:
        """Whether call 1 is the first call that was ever made on the communicator."""
        ...

    @property
    def rooted(self) -> bool:
        """Whether fingerprints cover everything from the first call ever made."""
        ...

    def fingerprint(self, seq: int) -> int:
        """Return the running hash after ``seq`` calls, for ``first - 1 <= seq <= calls``.

        Fingerprints can be compared directly where both logs are :attr:`rooted`; otherwise compare
        the :func:`~ncclscope.model.signature.stretch` between two of them.
        """
        ...

    def call(self, seq: int) -> Call:
        """Return call number ``seq``, for ``first <= seq <= calls``."""
        ...

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Return the calls in ``[start, stop)``, as far as they are kept."""
        ...

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Return the signatures of the calls in ``[start, stop)``, all of which are kept."""
        ...

    def sites(self, start: int, stop: int) -> Sequence[str | None]:
        """Return the sites of the calls in ``[start, stop)``, as far as they are kept."""
        ...

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return the numbers of these calls in the whole stream of the rank, from 0."""
        ...

    def threads(self, start: int, stop: int) -> Sequence[int]:
        """Return the number of the thread that posted each of these calls; 0 if not known."""
        ...


def made_before(log: CallLog, position: int) -> int:
    """Return how many calls of a log come before a position of the rank's stream.

    All overwritten calls count.
    """
    low, high = log.first, log.calls + 1
    while low < high:
        middle = (low + high) // 2
        if log.positions(middle, middle + 1)[0] < position:
            low = middle + 1
        else:
            high = middle
    return low - 1
