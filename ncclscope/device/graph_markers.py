"""Puts the markers of one communicator into CUDA graphs that are captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncclscope.device.driver import Attacher, Launcher, Tail
    from ncclscope.device.marks import DeviceMarks, Marks
    from ncclscope.ring.channel import Channel
    from ncclscope.tracing.graphs import Capture

__all__ = ["GraphMarkers", "Placement"]


class Placement:
    """Whether the markers of a graph stand in the stream, between the calls, or beside it.

    Where a graph is no chain each kernel of NCCL's takes some 2 us more. With the calls of one
    communicator it is a chain, until a marker stands beside them. With two, NCCL's own nodes have
    made it none already, and beside costs least; as it does where there are only other kernels.
    Whose calls a graph will hold is not known when the first is captured. It is taken to be like
    the last one, and the first of all like what was posted before it.

    Args:
        every: The markers of this process, by number of the communicator.

    Attributes:
        is_offered: Whether the GPU and its driver know of kernels that are there early. Without
            these all stand beside.
    """

    def __init__(self, every: Mapping[int, Marks]) -> None:
        self.is_offered = False
        self._every = every
        self._held: int | None = None

    def in_stream(self, capture: Capture) -> bool:
        """Returns it for a graph, the same for all its markers."""
        if capture.in_stream is None:
            number = self._held
            if number is None:
                # With one call a communicator has been tried, and is not used.
                every = list(self._every.values())
                number = sum(marks.is_nccl and marks.channel.seq > 1 for marks in every)
            capture.in_stream = self.is_offered and number == 1
        return capture.in_stream

    def learn(self, held: Iterable[Channel]) -> None:
        """Notes whose calls a graph holds, if any."""
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
        is_nccl: Whether its calls are kernels of NCCL's.
    """

    __slots__ = ("_attach", "_channel", "_device", "_early", "_is_nccl", "_tail")

    def __init__(self, device: DeviceMarks, channel: Channel, *, is_nccl: bool) -> None:
        self._device = device
        self._channel = channel
        self._is_nccl = is_nccl
        self._attach: dict[tuple[int, int], Attacher] = {}
        self._early: dict[int, Launcher] = {}
        self._tail: tuple[Capture | None, Tail | None] = (None, None)

    def put(self, launch: Launcher, which: int, more: int, stream: int, capture: Capture) -> bool:
        """Puts a marker into a graph.

        All of one graph stand in the stream, or none: one there might run at the same time as one
        beside the calls, and the older count stay. They do, too, where the driver refuses the
        first that is to stand beside.

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
            return not self._in_stream(launch, which, more)(stream)
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

    def _in_stream(self, launch: Launcher, which: int, more: int) -> Launcher:
        """Returns what captures a marker; behind a call of NCCL's one that is there early.

        Behind other kernels that takes longer than to be launched when they have ended.
        """
        if which or not self._is_nccl:
            return launch
        early = self._early.get(more)
        if early is None:
            early = self._early[more] = self._device.early_launcher(self._channel, more)
        return early
