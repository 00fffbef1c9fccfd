"""Progress of a communicator on one rank's GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceProgress:
    """The GPU's counts of one communicator's calls, replayed calls included.

    Attributes:
        posted: Number of collectives recorded when the counts were read.
        finished: The last call that finished, and all before it; None where not known.
        entered: The last call that the stream reached; None where that is not counted.
        handed_over: The newest call known to have been enqueued on the device.
        finished_ns: When the last call finished, by the host's clock, nanoseconds since 1970; None
            where not known.
        unknown: Why the counts are unusable; empty where they are usable.
    """

    posted: int
    finished: int | None = None
    entered: int | None = None
    handed_over: int = 0
    finished_ns: int | None = None
    unknown: str = ""

    @property
    def at(self) -> int | None:
        """The call that the device is in or before; None where all calls finished."""
        if self.finished is None or self.finished >= self.posted:
            return None
        return self.finished + 1

    @property
    def is_inside(self) -> bool | None:
        """Whether the stream has reached that call; None where it is not known.

        It is unknown for a call that may not have been enqueued: its markers may be missing.
        """
        if self.at is None or self.entered is None or self.at > self.handed_over:
            return None
        return self.entered >= self.at

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the JSON verdict."""
        return {
            "posted": self.posted,
            "handed_over": self.handed_over,
            "entered": self.entered,
            "finished": self.finished,
            "finished_ns": self.finished_ns,
            "at": self.at,
            "unknown": self.unknown or None,
        }
