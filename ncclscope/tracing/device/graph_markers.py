"""Add the markers of one communicator to CUDA graphs during capture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ncclscope.ring.channel import Channel
    from ncclscope.tracing.device.driver import Attacher, Launcher, Tail
    from ncclscope.tracing.graphs import GraphCapture


class _Counted(Protocol):
    """The markers of one communicator."""

    @property
    def is_nccl(self) -> bool: ...
    @property
    def channel(self) -> Channel: ...


class _Device(Protocol):
    """The markers of the process."""

    @property
    def placement(self) -> Placement: ...
    def attacher(self, channel: Channel, which: int, more: int) -> Attacher: ...


class Placement:
    """Decides whether a graph's markers go into the stream, between the calls, or beside them.

    In the stream a marker costs about 1 us, since the next kernel waits for it. Beside the stream
    it costs a quarter to a half of that. The exception is a graph with calls of exactly one NCCL
    communicator, where it costs 1.7 to 2.5 us beside the stream (docs/device-progress.md has the
    measurements on H200s; the cause is unknown). Which communicators a graph will hold is unknown
    at its first call. So it is assumed to be like the last graph, and the first one like the calls
    before it.

    Args:
        every: The markers of this process, by communicator number.
    """

    def __init__(self, every: Mapping[int, _Counted]) -> None:
        self._every = every
        self._held: int | None = None

    def in_stream(self, capture: GraphCapture) -> bool:
        """Return whether a graph's markers go into the stream; the same for all of them."""
        if capture.in_stream is None:
            number = self._held
            if number is None:
                # A communicator with a single call was only initialised and is not used.
                every = list(self._every.values())
                number = sum(marks.is_nccl and marks.channel.seq > 1 for marks in every)
            capture.in_stream = number == 1
        return capture.in_stream

    def learn(self, held: Iterable[Channel]) -> None:
        """Note the communicators of a captured graph, if any."""
        found = [self._every.get(channel.index) for channel in held]
        if found:
            self._held = sum(marks is not None and marks.is_nccl for marks in found)


class GraphMarkers:
    """The markers of one communicator in graphs.

    They are beside the stream, where no kernel waits for them, or in it, between a call and the
    next kernel. :class:`Placement` decides which costs less.

    Args:
        device: The markers of the process.
        channel: The communicator.
    """

    __slots__ = ("_attach", "_channel", "_device", "_tail")

    def __init__(self, device: _Device, channel: Channel) -> None:
        self._device = device
        self._channel = channel
        self._attach: dict[tuple[int, int], Attacher] = {}
        self._tail: tuple[GraphCapture | None, Tail | None] = (None, None)

    def put(
        self, launch: Launcher, which: int, more: int, stream: int, capture: GraphCapture
    ) -> bool:
        """Add a marker to a graph.

        A marker in the stream could run at the same time as an earlier one beside it, and the
        older count could be written last. So all markers of a graph are in the stream, or none.
        If the driver refuses the first marker beside the stream, they all go into it.

        Args:
            launch: Launch the same marker on a stream.
            which: 0 for a marker after a call, 1 for one before it.
            more: Number of calls that it counts.
            stream: Handle of the captured stream.
            capture: The graph.

        Returns:
            Whether the marker is in the graph.
        """
        if self._device.placement.in_stream(capture):
            return not launch(stream)
        attach = self._attach.get((which, more))
        if attach is None:
            attach = self._device.attacher(self._channel, which, more)
            self._attach[which, more] = attach
        before = self._tail[1] if self._tail[0] is capture else None
        tail = attach(stream, before)
        if tail is None:
            return before is None and not launch(stream)
        self._tail = capture, tail
        return True
