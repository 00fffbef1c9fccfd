"""Puts markers behind the calls of one process, and knows what their count is worth.

Each collective of a communicator has one marker behind it on the stream that it was posted on,
so that the number of markers that have run is the number of the last call that has finished.
That holds in CUDA graphs, too, wherever the marker stands in them: a captured call takes
no number until it is replayed, and each replay runs its marker again. Where it no longer holds,
the slot says so, and why, for good.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncclscope.ring import layout
from ncclscope.ring.slots import Slots
from ncclscope.tracing.device.driver import Attacher, Driver, DriverError, Launcher
from ncclscope.tracing.device.graph_markers import GraphMarkers, Placement

if TYPE_CHECKING:
    from ncclscope.ring.channel import Channel
    from ncclscope.tracing.graphs import GraphCapture
    from ncclscope.tracing.host import Host

__all__ = ["DeviceMarks", "Marks"]

_COUNT_SIZE = 16
"""Bytes of counts of one communicator: finished and entered."""
_FINISHED, _LAUNCHED = 0, layout.SLOT_LAUNCHED // 8
_CLOCK_SECONDS = 0.005
"""How long to wait, once, for the first stamp of the GPU."""

_BEFORE, _IN_CAPTURE, _OWN_STREAM, _ELSEWHERE, _WITHOUT = 1, 2, 3, 4, 5
_IN_GRAPH, _MANY_STREAMS, _PAST_TORCH, _IN_GROUP, _REFUSED, _TWO_STREAMS = 6, 7, 8, 9, 10, 11
_ENDED = 14


class DeviceMarks:
    """The markers of one process.

    Args:
        tracer: Whose calls they stand behind.
        slots: The device part of its ring.
        enters: Whether there are markers before the calls, too.
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
        """The device that calls are counted on; -1 before the first."""
        self.clock = 0
        """Host clock less the GPU's, in nanoseconds; 0 where it is not known."""

    def of(self, channel: Channel, *, is_nccl: bool) -> Marks:
        """Return the markers of a communicator: of NCCL's, or of kernels of vLLM's own."""
        with self._lock:
            marks = self._marks.get(channel.index)
            if marks is None:
                marks = self._marks[channel.index] = Marks(self, channel, is_nccl=is_nccl)
            return marks

    @property
    def is_ready(self) -> bool:
        """Whether all has been brought up."""
        return self.ordinal >= 0

    def prepare(self, ordinal: int, stream: int, marks: Marks) -> bool:
        """Bring up what it takes on a device that the program uses already.

        Not while this thread captures a graph, and before the first launch that one may hold.

        Args:
            ordinal: The device.
            stream: One to try the kernel on. Its first launch loads it, and may wait for what
                the GPU does: before the first collective, no longer than the program would.
            marks: A communicator to try it for.

        Returns:
            False when there is nothing to be had; that is said once.
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
        """Relate the GPU's clock to the host's, where the first kernel runs at once."""
        until = time.monotonic() + _CLOCK_SECONDS
        while not (stamp := marks.stamp):
            if time.monotonic() > until:
                return
            time.sleep(0)
        self.clock = time.time_ns() - stamp

    def turn_off(self, reason: str) -> None:
        """End it for this process, and say so once."""
        from ncclscope.tracing.warning import warn_once

        for marks in list(self._marks.values()):
            if marks.is_counted:
                marks.lose(_ENDED)
        self.is_off = True
        warn_once("device", f"progress on the device is off in this process: {reason}")
        self._tracer.describe(device_progress=f"off: {reason}"[:500])

    def launcher(self, channel: Channel, which: int, more: int) -> Launcher:
        """Return what launches a marker: 0 behind a call, 1 before it."""
        assert self._driver is not None
        given = self._parameters(channel, which, more)
        return self._driver.launcher(self._context, self._function, *given)

    def attacher(self, channel: Channel, which: int, more: int) -> Attacher:
        """Return what puts a marker into a graph that is captured."""
        assert self._driver is not None
        given = self._parameters(channel, which, more)
        return self._driver.attacher(self._context, self._function, *given)

    def _parameters(self, channel: Channel, which: int, more: int) -> tuple[int, int, int]:
        place = self._base + self.slots.offset(channel.index) + which * 16
        return place, (channel.index - 1) * _COUNT_SIZE + which * 8, more

    def capture(self) -> GraphCapture | None:
        """Return the graph that this thread captures now."""
        current: GraphCapture | None = self._tracer.graphs.current()
        return current

    def is_capturing(self, stream: int) -> bool:
        """Return whether what is put on a stream becomes a part of a graph."""
        return self._driver is not None and self._driver.is_capturing(stream)

    def captured(self, capture: GraphCapture) -> Sequence[tuple[Marks, int]]:
        """Check that each call of a graph has its marker in it.

        Returns:
            For each communicator the markers and how many of its calls the graph holds.
        """
        if self.is_off:
            return ()
        counts = Counter(call.channel for call in capture.calls if call.signature)
        found = []
        for channel, count in counts.items():
            marks = self._marks.get(channel.index)
            if marks is None:
                continue  # never asked for: nothing is counted there
            if capture.marked.get(channel, 0) != count:
                marks.lose(_IN_GRAPH)
            elif not marks.is_lost:
                found.append((marks, count))
        self.placement.learn(counts)
        return found


class Marks:
    """The markers of one communicator.

    Args:
        device: Those of the process.
        channel: The communicator.
        is_nccl: Whether its calls are kernels of NCCL's.
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
        """Whether markers of it have been launched."""
        return self._finish is not None

    def lose(self, reason: int) -> None:
        """Note that the count does not tell the number of a call any more."""
        if not self.is_lost and not self.device.is_off:
            self.is_lost = True
            self.device.slots.put(self.channel.index, layout.SLOT_LOST, reason, self.channel.seq)

    def begin(self, stream: int, capture: GraphCapture | None, ordinal: int) -> bool:
        """Prepare for a call that has been recorded and is about to be posted.

        Args:
            stream: That it will run on.
            capture: The graph that it becomes a part of; None for one that is carried out.
            ordinal: The device; -1 where it has not been brought up yet.

        Returns:
            Whether :meth:`end` is to be called when the call has been posted.
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
        """Put the marker behind a call that has just been posted.

        Args:
            stream: As for :meth:`begin`.
            capture: As for :meth:`begin`.
            ordinal: As for :meth:`begin`.
            grouped: It is only handed over at the end of its NCCL group.
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
        """Put the marker behind all calls of a group that has just been handed over."""
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
        """Note that a graph is about to be launched, whose calls have been recorded."""
        if not self.is_lost and (stream != self._stream or self._unsettled):
            self._settle(stream, self.channel.seq - count)

    def end_replay(self, count: int) -> None:
        """Note that a graph has been launched."""
        if self.is_lost:
            return
        if self.channel.seq - count != self._launched:
            self.lose(_WITHOUT)
        else:
            self._launched = self._numbers[_LAUNCHED] = self.channel.seq

    def _settle(self, stream: int, before: int) -> None:
        """Go over to another stream, or find that going over to it has left no doubt.

        While calls are under way on two streams, markers may run in another order than they
        were launched in. Once all have run, the count is the number of the last call again.
        """
        settled = self.finished == before
        self._stream = stream
        if settled == self._unsettled:
            self._unsettled = not settled
            state = layout.SLOT_COUNTED if settled else layout.SLOT_UNSETTLED
            self.device.slots.put(self.channel.index, state, 0, self.channel.seq)

    def _set_up(self, stream: int, capture: GraphCapture | None, ordinal: int) -> bool:
        """Make the launchers, at the first call of the communicator."""
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
        """How many calls the GPU has counted."""
        return self._numbers[_FINISHED]

    @property
    def stamp(self) -> int:
        """The GPU's clock when the last marker behind a call ran; 0 before the first."""
        return self._numbers[1]
