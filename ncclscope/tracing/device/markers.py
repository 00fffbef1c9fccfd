"""Launch markers after the calls of one process, and track whether their count is valid.

Each collective of a communicator is followed by one marker on its stream. So the number of
markers that have run is the sequence number of the last finished call. This also holds in CUDA
graphs: a captured call gets its number at a replay, and each replay runs its marker again. Once
it no longer holds, the slot is marked as lost for good, with the reason.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncclscope.clock import now_ns
from ncclscope.ring import layout
from ncclscope.ring.slots import Slots
from ncclscope.tracing.device.driver import Attacher, Driver, DriverError, Launcher
from ncclscope.tracing.device.graph_markers import GraphMarkers, Placement

if TYPE_CHECKING:
    from ncclscope.ring.channel import Channel
    from ncclscope.tracing.graphs import GraphCapture
    from ncclscope.tracing.host import Host

_COUNT_SIZE = 16
"""Bytes of one communicator's counts: finished and entered."""
_FINISHED, _LAUNCHED = 0, layout.SLOT_LAUNCHED // 8
_CLOCK_SECONDS = 0.005
"""Seconds to wait, once, for the GPU's first time stamp."""

_BEFORE, _IN_CAPTURE, _OWN_STREAM, _ELSEWHERE, _WITHOUT = 1, 2, 3, 4, 5
_IN_GRAPH, _MANY_STREAMS, _PAST_TORCH, _IN_GROUP, _REFUSED, _TWO_STREAMS = 6, 7, 8, 9, 10, 11
_ENDED = 14


class DeviceMarks:
    """The markers of one process.

    Args:
        tracer: The tracer that records the calls.
        slots: The device section of its ring.
        enters: Whether to launch markers before the calls, too.
    """

    def __init__(self, tracer: Host, slots: Slots, *, enters: bool) -> None:
        self.slots = slots
        self.enters = enters
        self.is_off = False
        self._tracer = tracer
        self._lock = threading.RLock()
        self._marks: dict[int, Marks] = {}
        self._driver: Driver | None = None
        self._context = self._function = self._base = 0
        self.placement = Placement(self._marks)
        self.ordinal = -1
        """Number of the device on which calls are counted; -1 before the first call."""
        self.clock = 0
        """Host clock minus GPU clock in ns; 0 if unknown."""

    def of(self, channel: Channel, *, is_nccl: bool) -> Marks:
        """Return the markers of a communicator, whose kernels are NCCL's or vLLM's own."""
        with self._lock:
            marks = self._marks.get(channel.index)
            if marks is None:
                marks = self._marks[channel.index] = Marks(self, channel, is_nccl=is_nccl)
            return marks

    @property
    def is_ready(self) -> bool:
        """Whether the driver is set up."""
        return self.ordinal >= 0

    def prepare(self, ordinal: int, stream: int, marks: Marks) -> bool:
        """Set up the driver on a device that the program already uses.

        Call it while this thread captures no graph, and before the first marker in a graph.

        Args:
            ordinal: Number of the device.
            stream: Handle of a stream on which to test the kernel. The first launch loads it and
                may wait for the GPU; before the first collective, the program would wait, too.
            marks: A communicator for the test.

        Returns:
            False if counting is not possible, which is reported once.
        """
        if self.is_off or self.is_ready:
            return not self.is_off
        with self._lock:
            if self.is_off or self.is_ready:
                return not self.is_off
            try:
                self._driver = driver = Driver()
                self._context = driver.context(ordinal)
                with driver.within(self._context):
                    self._base = driver.register(self.slots.address, self.slots.size)
                    self.slots.keep()
                    self._function = driver.load()
                result = self.launcher(marks.channel, 0, 0)(stream)
                if result:
                    raise DriverError(f"a first kernel was refused ({result})")
            except (DriverError, AttributeError) as error:
                self.turn_off(str(error))
                return False
            self._read_clock(marks)
            self.ordinal = ordinal
        return True

    def _read_clock(self, marks: Marks) -> None:
        """Measure the difference of the clocks, if the first kernel runs immediately."""
        until = time.monotonic() + _CLOCK_SECONDS
        while not (stamp := marks.stamp):
            if time.monotonic() > until:
                return
            time.sleep(0)
        self.clock = now_ns() - stamp

    def turn_off(self, reason: str) -> None:
        """Stop counting in this process, and warn once."""
        from ncclscope.tracing.warning import warn_once

        for marks in list(self._marks.values()):
            if marks.is_counted:
                marks.lose(_ENDED)
        self.is_off = True
        warn_once("device", f"progress on the device is off in this process: {reason}")
        self._tracer.describe(device_progress=f"off: {reason}"[:500])

    def launcher(self, channel: Channel, which: int, more: int) -> Launcher:
        """Return a function that launches a marker.

        Args:
            channel: The communicator.
            which: 0 for a marker after a call, 1 for one before it.
            more: Number of calls that it counts.
        """
        assert self._driver is not None
        given = self._parameters(channel, which, more)
        return self._driver.launcher(self._context, self._function, *given)

    def attacher(self, channel: Channel, which: int, more: int) -> Attacher:
        """Return a function that adds a marker to a graph.

        Args:
            channel: The communicator.
            which: 0 for a marker after a call, 1 for one before it.
            more: Number of calls that it counts.
        """
        assert self._driver is not None
        given = self._parameters(channel, which, more)
        return self._driver.attacher(self._context, self._function, *given)

    def _parameters(self, channel: Channel, which: int, more: int) -> tuple[int, int, int]:
        place = self._base + self.slots.offset(channel.index) + which * 16
        return place, (channel.index - 1) * _COUNT_SIZE + which * 8, more

    def capture(self) -> GraphCapture | None:
        """Return the graph that this thread is capturing, or None."""
        current: GraphCapture | None = self._tracer.graphs.current()
        return current

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream is being captured into a graph."""
        return self._driver is not None and self._driver.is_capturing(stream)

    def captured(self, capture: GraphCapture) -> Sequence[tuple[Marks, int]]:
        """Check that each call of a graph has its marker in the graph.

        Returns:
            For each communicator, its markers and its number of calls in the graph.
        """
        if self.is_off:
            return ()
        counts = Counter(call.channel for call in capture.calls if call.signature)
        found = []
        for channel, count in counts.items():
            marks = self._marks.get(channel.index)
            if marks is None:
                continue  # this communicator is not counted
            if capture.marked.get(channel, 0) != count:
                marks.lose(_IN_GRAPH)
            elif not marks.is_lost:
                found.append((marks, count))
        self.placement.learn(counts)
        return found


class Marks:
    """The markers of one communicator.

    Args:
        device: The markers of the process.
        channel: The communicator.
        is_nccl: Whether its calls are NCCL kernels.
    """

    __slots__ = (
        "_captured_on",
        "_enter",
        "_finish",
        "_graphs",
        "_grouped",
        "_launched",
        "_more",
        "_numbers",
        "_stream",
        "_unsettled",
        "channel",
        "device",
        "is_lost",
        "is_nccl",
    )

    def __init__(self, device: DeviceMarks, channel: Channel, *, is_nccl: bool) -> None:
        self.device = device
        self.channel = channel
        self.is_nccl = is_nccl
        self.is_lost = False
        self._numbers = device.slots.numbers(channel.index)
        self._launched = 0
        self._stream = -1
        self._unsettled = False
        self._finish: Launcher | None = None
        self._enter: Launcher | None = None
        self._more: dict[int, Launcher] = {}
        self._graphs = GraphMarkers(device, channel)
        self._grouped: list[int] = []
        self._captured_on: tuple[object, int] = (None, -1)

    @property
    def is_counted(self) -> bool:
        """Whether any of its markers have been launched."""
        return self._finish is not None

    def lose(self, reason: int) -> None:
        """Mark the count as lost; `reason` is an index into `layout.LOST`."""
        if not self.is_lost and not self.device.is_off:
            self.is_lost = True
            self.device.slots.put(self.channel.index, layout.SLOT_LOST, reason, self.channel.seq)

    def begin(self, stream: int, capture: GraphCapture | None, ordinal: int) -> bool:
        """Prepare for a recorded call that is about to be enqueued.

        Args:
            stream: Handle of its stream.
            capture: The graph that captures it; None if it runs directly.
            ordinal: Number of the device; -1 if it is not set up yet.

        Returns:
            Whether :meth:`end` must be called after the call has been enqueued.
        """
        if self.is_lost or self.device.is_off:
            return False
        if self._finish is None:
            if ordinal < 0:
                return True  # by the end of the call it has
            if not self._set_up(stream, capture, ordinal):
                return False
        if ordinal != self.device.ordinal:
            self.lose(_ELSEWHERE)
            return False
        if capture is None:
            if stream != self._stream or self._unsettled:
                self._settle(stream, self.channel.seq - 1 - len(self._grouped))
        elif self._captured_on[0] is not capture:
            self._captured_on = capture, stream
        elif self._captured_on[1] != stream:
            self.lose(_MANY_STREAMS)
            return False
        enter = self._enter
        if enter is None:
            return True
        if enter(stream) if capture is None else not self._graphs.put(enter, 1, 1, stream, capture):
            self.lose(_REFUSED)
            return False
        return True

    def end(
        self, stream: int, capture: GraphCapture | None, ordinal: int, *, grouped: bool
    ) -> None:
        """Launch the marker after a call that has just been enqueued.

        Args:
            stream: As for :meth:`begin`.
            capture: As for :meth:`begin`.
            ordinal: As for :meth:`begin`.
            grouped: Whether the call is launched only at the end of its NCCL group.
        """
        if self.is_lost:
            return
        finish = self._finish
        if finish is None:
            if ordinal < 0 or not self._set_up(stream, capture, ordinal):
                return
            finish = self._finish
            assert finish is not None
            if self._enter is not None:
                self._enter(stream)
        if grouped:
            if self._grouped and self._grouped[-1] != stream:
                self.lose(_TWO_STREAMS)
            self._grouped.append(stream)
            return
        if capture is not None:
            if not self._graphs.put(finish, 0, 1, stream, capture):
                self.lose(_REFUSED)
            else:
                capture.marked[self.channel] = capture.marked.get(self.channel, 0) + 1
            return
        seq = self.channel.seq
        if seq - 1 != self._launched:
            self.lose(_WITHOUT)
        elif finish(stream):
            self.lose(_REFUSED)
        else:
            self._launched = self._numbers[_LAUNCHED] = seq

    def end_group(self, capture: GraphCapture | None) -> None:
        """Launch the marker after all calls of a group that has just been launched."""
        count, streams = len(self._grouped), self._grouped
        self._grouped = []
        if self.is_lost or not count or self._finish is None:
            return
        if count not in self._more:
            self._more[count] = self.device.launcher(self.channel, 0, count)
        launch, stream = self._more[count], streams[0]
        if capture is not None:
            if not self._graphs.put(launch, 0, count, stream, capture):
                self.lose(_REFUSED)
            else:
                capture.marked[self.channel] = capture.marked.get(self.channel, 0) + count
        elif self.channel.seq - count != self._launched:
            self.lose(_WITHOUT)
        elif launch(stream):
            self.lose(_REFUSED)
        else:
            self._launched = self._numbers[_LAUNCHED] = self.channel.seq

    def drop_group(self) -> None:
        """Forget a group that failed: none of its calls gets a marker."""
        self._grouped = []

    def begin_replay(self, stream: int, count: int) -> None:
        """Prepare for the launch of a graph with `count` recorded calls."""
        if not self.is_lost and (stream != self._stream or self._unsettled):
            self._settle(stream, self.channel.seq - count)

    def end_replay(self, count: int) -> None:
        """Note that a graph with `count` calls has been launched."""
        if self.is_lost:
            return
        if self.channel.seq - count != self._launched:
            self.lose(_WITHOUT)
        else:
            self._launched = self._numbers[_LAUNCHED] = self.channel.seq

    def _settle(self, stream: int, before: int) -> None:
        """Switch to another stream, or confirm that all calls before the switch have finished.

        While calls are in flight on two streams, their markers may run in any order. Once all
        have run, the count equals the number of the last call again.

        Args:
            stream: Handle of the stream.
            before: Number of calls before this one.
        """
        settled = self.finished == before
        self._stream = stream
        if settled == self._unsettled:
            self._unsettled = not settled
            state = layout.SLOT_COUNTED if settled else layout.SLOT_UNSETTLED
            self.device.slots.put(self.channel.index, state, 0, self.channel.seq)

    def _set_up(self, stream: int, capture: GraphCapture | None, ordinal: int) -> bool:
        """Create the launchers at the communicator's first call; return False if it is lost."""
        device, index = self.device, self.channel.index
        if self.channel.seq > (1 if capture is None else 0):
            self.lose(_BEFORE)
            return False
        if capture is not None and not device.is_ready:
            self.lose(_IN_CAPTURE)
            return False
        if not device.prepare(ordinal, stream, self):
            return False
        if ordinal != device.ordinal:
            self.lose(_ELSEWHERE)
            return False
        if capture is None:
            self._stream = stream
        if device.enters:
            self._enter = device.launcher(self.channel, 1, 1)
            device.slots.put_enters(index)
        if device.clock:
            device.slots.put_clock(index, device.clock)
        device.slots.put(index, layout.SLOT_COUNTED)
        self._finish = device.launcher(self.channel, 0, 1)
        return True

    @property
    def finished(self) -> int:
        """Number of calls that the GPU has counted."""
        return self._numbers[_FINISHED]

    @property
    def stamp(self) -> int:
        """GPU clock in ns when the last marker after a call ran; 0 before the first."""
        return self._numbers[1]
