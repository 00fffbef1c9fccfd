"""Puts the markers of one communicator into CUDA graphs that are captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ncclscope.device.driver import Attacher, Launcher, Tail
    from ncclscope.device.marks import DeviceMarks
    from ncclscope.ring.channel import Channel
    from ncclscope.tracing.graphs import Capture

__all__ = ["GraphMarkers"]


class GraphMarkers:
    """The markers of one communicator in graphs: beside its calls, where nothing waits for them.

    Args:
        device: Those of the process.
        channel: The communicator.
    """

    __slots__ = ("_attach", "_channel", "_device", "_tail")

    def __init__(self, device: DeviceMarks, channel: Channel) -> None:
        self._device = device
        self._channel = channel
        self._attach: dict[tuple[int, int], Attacher] = {}
        self._tail: tuple[Capture | None, Tail | None] = (None, None)

    def put(self, launch: Launcher, which: int, more: int, stream: int, capture: Capture) -> bool:
        """Puts a marker into a graph.

        It is captured between the calls where the driver knows no better from the first marker
        on: one between might run at the same time as one beside, and the older count stay.

        Args:
            launch: What puts the same marker on a stream.
            which: 0 behind a call, 1 before it.
            more: How many calls it stands behind.
            stream: That is captured.
            capture: The graph.

        Returns:
            False where it is not in the graph.
        """
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
