"""What the parts of a tracer need of it: graphs, markers on the device, the guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ncclscope.ring.channel import Channel
from ncclscope.ring.writer import RingWriter

__all__ = ["CallGuard", "Device", "Host"]


class Device(Protocol):
    """Counts calls on the GPU."""

    def captured(self, capture: Any) -> Sequence[tuple[Any, int]]:
        """Return the markers of a captured graph, each with how many calls it counts."""


class CallGuard(Protocol):
    """Compares calls with those of peers."""

    post: Callable[..., int]

    def watch(self, comm: Any) -> None:
        """Make a communicator known to the peers."""

    def replayed(self, channel: Channel) -> None:
        """Compare what a replay has posted."""

    def detach(self) -> None:
        """Let go of everything, in the child after a fork."""


class Host(Protocol):
    """A tracer."""

    ring: RingWriter
    rank: int
    post: Callable[..., int]
    watched: Callable[[Channel], None] | None

    @property
    def device(self) -> Device | None:
        """Count on the GPU, where that was asked for."""

    @property
    def graphs(self) -> Any:
        """The CUDA graphs of the process."""

    def describe(self, **fields: Any) -> None:
        """Add to what the ring says of the process."""
