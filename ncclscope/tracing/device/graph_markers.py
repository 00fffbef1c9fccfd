"""Puts the markers of one communicator into CUDA graphs that are captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ncclscope.ring.channel import Channel
    from ncclscope.tracing.device.driver import Attacher, Launcher, Tail
    from ncclscope.tracing.graphs import GraphCapture

__all__ = ["GraphMarkers", "Placement"]


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
    """Whether the markers of a graph stand in the stream, between the calls, or beside them.

    In the stream a marker costs some 1 us, as what comes next waits for it. Beside it costs a
    quarter to a half of that, but where the graph holds calls of one NCCL communicator: there it
    is 1.7 to 2.5 us (docs/device-progress.md has what was measured, on H200s; why is not known).
    Whose calls a graph will hold is not known when the first is captured. It is taken to be like
    the last one, and the first of all like what was posted before it.

    Args:
        every: The markers of this process, by number of the communicator.
    """

    def __init__(self, every: Mapping[int, _Counted]) -> None:
        self._every = every
        self._held: int | None = None

    def in_stream(self, capture: GraphCapture) -> bool:
        """Return it for a graph, the same for all its markers."""
        if capture.in_stream is None:
            number = self._held
            if number is None:
                # With one call a communicator has been tried, and is not used.
                every = list(self._every.values())
                number = sum(marks.is_nccl and marks.channel.seq > 1 for marks in every)
            capture.in_stream = number == 1
        return capture.in_stream

    def learn(self, held: Iterable[Channel]) -> None:
        """Note whose calls a graph holds, if any."""
        found = [self._every.get(channel.index) for channel in held]
        if found:
            self._held = sum(marks is not None and marks.is_nccl for marks in found)


class GraphMarkers:
    """The markers of one communicator in graphs.

    They stand beside its calls, where nothing waits for them, or in the stream between a call and
    what comes next: :class:`Placement` says which costs less.

    Args:
        device: Those of the process.
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
        """Put a marker into a graph.

        One in the stream behind one beside might run at the same time, and the older count stay.
        So all of a graph stand in the stream, or none; where the driver refuses the first that is
        to stand beside, it stands in the stream.

        Args:
            launch: What puts the same marker on a stream.
            which: 0 behind a call, 1 before it.
            more: How many calls it stands behind.
            stream: That is captured.
            capture: The graph.

        Returns:
            False where it is not in the graph.
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
