"""What a rank recorded, in order, and how it is read without reading all of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ncclscope.model.call import Call, Communicator

__all__ = ["CallLog", "Trail", "last_of", "newest_of"]

What = TypeVar("What")


class Trail(Sequence[What]):
    """Steps or transfers of one rank, oldest first, whose end can be read alone."""

    @abstractmethod
    def newest(self, count: int) -> Sequence[What]:
        """The last so many, oldest first; fewer where no more were recorded lately."""


def last_of(recorded: Sequence[What]) -> What | None:
    """The newest of what was recorded; None where there is none."""
    found = newest_of(recorded, 1)
    return found[-1] if found else None


def newest_of(recorded: Sequence[What], count: int) -> Sequence[What]:
    """The last so many of what was recorded, oldest first; fewer where there are no more."""
    if isinstance(recorded, Trail):
        return recorded.newest(count)
    return recorded[max(0, len(recorded) - count) :]


class CallLog(Protocol):
    """The collectives of one rank on one communicator, in order.

    ``calls`` counts all that were made; the records of the first ``first - 1`` of them
    are gone. In a log that is not ``anchored`` even their number is unknown: ``first``
    is 1, and sequence numbers mean nothing outside the log.
    """

    @property
    def communicator(self) -> Communicator: ...

    @property
    def calls(self) -> int:
        """Calls made, kept or not."""
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
        """Running hash after ``seq`` calls, for ``first - 1 <= seq <= calls``.

        Fingerprints themselves can be compared where both logs are :attr:`rooted`;
        otherwise the stretch between two of them can.
        """
        ...

    def call(self, seq: int) -> Call:
        """The call number ``seq``, for ``first <= seq <= calls``."""
        ...

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Calls ``start`` to ``stop - 1``, as far as they are kept."""
        ...

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Signatures of calls ``start`` to ``stop - 1``, all of which are kept."""
        ...

    def sites(self, start: int, stop: int) -> Sequence[str | None]:
        """Where calls ``start`` to ``stop - 1`` came from, as far as they are kept."""
        ...

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Their numbers in the whole stream of the rank."""
        ...
