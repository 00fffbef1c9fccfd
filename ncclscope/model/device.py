"""How far a communicator is on one rank's GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DeviceProgress"]


@dataclass(frozen=True, slots=True)
class DeviceProgress:
    """What the GPU has counted of one communicator's calls, in each replay of a graph, too.

    Attributes:
        posted: Collectives recorded when the counts were looked at.
        finished: The last call that has finished; all before it have. None where not known.
        entered: The last call that the stream had come to; None where that is not counted.
        handed_over: The newest call known to have been handed to the device.
        finished_ns: When the last call finished, by the host's clock; None where not known.
        unknown: Why the counts tell nothing; empty where they do.
    """

    posted: int
    finished: int | None = None
    entered: int | None = None
    handed_over: int = 0
    finished_ns: int | None = None
    unknown: str = ""

    @property
    def at(self) -> int | None:
        """The call that the rank stands in or before; None where all have finished."""
        if self.finished is None or self.finished >= self.posted:
            return None
        return self.finished + 1

    @property
    def is_inside(self) -> bool | None:
        """Whether the stream has come to that call; None where it is not known.

        Of one that may not have been handed over, it is not: its markers may be missing.
        """
        if self.at is None or self.entered is None or self.at > self.handed_over:
            return None
        return self.entered >= self.at

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of the JSON verdict."""
        return {
            "posted": self.posted,
            "handed_over": self.handed_over,
            "entered": self.entered,
            "finished": self.finished,
            "finished_ns": self.finished_ns,
            "at": self.at,
            "unknown": self.unknown or None,
        }
