"""Interfaces between a tracer and its parts: graphs, device markers and the guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ncclscope.ring.channel import Channel
from ncclscope.ring.writer import RingWriter


class Device(Protocol):
    """Counts calls on the GPU."""

    def captured(self, capture: Any) -> Sequence[tuple[Any, int]]:
        """Return the markers of a captured graph, each with its number of calls."""


class CallGuard(Protocol):
    """Compares calls with those of peers."""

    post: Callable[..., int]

    def watch(self, comm: Any) -> None:
        """Announce a communicator to the peers."""

    def replayed(self, channel: Channel) -> None:
        """Compare the calls that a replay enqueued."""

    def detach(self) -> None:
        """Release all resources, in the child after a fork."""


class Host(Protocol):
    """A tracer."""

    ring: RingWriter
    rank: int
    post: Callable[..., int]
    watched: Callable[[Channel], None] | None

    @property
    def device(self) -> Device | None:
        """The GPU's call counter, if requested."""

    @property
    def graphs(self) -> Any:
        """The CUDA graphs of the process."""

    def describe(self, **fields: Any) -> None:
        """Add to the process description in the ring."""
