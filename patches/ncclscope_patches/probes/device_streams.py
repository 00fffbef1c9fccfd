"""From a call that a probe has recorded to the markers that the GPU counts it by.

Nothing here raises: what goes wrong ends the counting, and neither the probe nor the call.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ncclscope.ring import layout
from ncclscope.tracing import scope, session

if TYPE_CHECKING:
    from ncclscope.tracing.device.markers import Marks
    from ncclscope.tracing.graphs import GraphCapture

__all__ = [
    "NOWHERE_YET",
    "STREAM_UNKNOWN",
    "Place",
    "Where",
    "checked",
    "current_stream",
    "end_group",
    "finish",
    "finish_replay",
    "of_tensor",
    "start",
    "start_replay",
]

Place = tuple[int, int]
"""Device, by its number in this process, and stream, by its handle."""

Where = Callable[[tuple[Any, ...], dict[str, Any]], "Place | int"]
"""Says of a call where it runs, or by a number of LOST why that is not known."""

NOWHERE_YET: Place = (-1, 0)
"""Of a process that has not used CUDA before this very call."""

STREAM_UNKNOWN = 13
_UNSEEN_CAPTURE, _IN_GROUP, _OWN_STREAM = 8, 9, 3


Mark = tuple[
    "Marks", Place, "GraphCapture | None", bool, Where, tuple[Any, ...], dict[str, Any], bool
]
"""A call on its way: markers, place, graph, whether in an NCCL group, what finds its place, its
arguments, and whether only that it returns None proves that it ran there."""


_grouped: dict[int, list[Marks]] = {}
"""Thread identity -> communicators with calls in its open NCCL group."""


def start(
    marks: Marks,
    where: Where | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    flags: int,
    position: int,
    *,
    returns_none: bool = False,
) -> Mark | None:
    """Prepare to count a collective that has been recorded and is about to be posted.

    Args:
        marks: The markers of its communicator.
        where: Says where it runs.
        args: Its arguments, and
        kwargs: those by name.
        flags: FLAG_* of its record.
        position: Of its record; -1 for one that became a part of a graph.
        returns_none: It is only known to have run there when it returns None.

    Returns:
        What :func:`finish` takes; None where nothing is counted.
    """
    try:
        if marks.is_lost or marks.device.is_off:
            return None
        capture = None
        if flags & layout.FLAG_CAPTURED:
            capture = marks.device.capture()
            if capture is None or position >= 0:
                marks.lose(_UNSEEN_CAPTURE)
                return None
        grouped = bool(scope.groups) and scope.group_number() != 0
        if grouped and returns_none:
            marks.lose(_IN_GROUP)
            return None
        place = STREAM_UNKNOWN if where is None else where(args, kwargs)
        if isinstance(place, int):
            marks.lose(place)
            return None
        if not marks.begin(place[1], capture, place[0]):
            return None
        assert where is not None
        return marks, place, capture, grouped, where, args, kwargs, returns_none
    except Exception as error:
        marks.device.turn_off(repr(error))
        return None


def finish(mark: Mark, result: Any) -> None:
    """Count a collective that has just been posted."""
    marks, place, capture, grouped, where, args, kwargs, returns_none = mark
    try:
        if returns_none and result is not None:
            marks.lose(_OWN_STREAM)
            return
        if place is NOWHERE_YET:
            found = where(args, kwargs)
            if isinstance(found, int):
                marks.lose(found)
                return
            place = found
        marks.end(place[1], capture, place[0], grouped=grouped)
        if grouped:
            mine = _grouped.setdefault(threading.get_ident(), [])
            if marks not in mine:
                mine.append(marks)
    except Exception as error:
        marks.device.turn_off(repr(error))


def end_group(*, failed: bool) -> None:
    """Count the calls of the NCCL group that has just ended on this thread."""
    if not _grouped or scope.group_number():
        return
    for marks in _grouped.pop(threading.get_ident(), ()):
        try:
            if failed:
                marks.drop_group()
            else:
                marks.end_group(marks.device.capture() if _is_capturing() else None)
        except Exception as error:
            marks.device.turn_off(repr(error))


def of_tensor(tensor: Any) -> Place | int:
    """Return where work on a tensor runs: the stream that is current on its device."""
    ordinal = tensor.get_device()
    if ordinal < 0:
        return STREAM_UNKNOWN
    return ordinal, sys.modules["torch"]._C._cuda_getCurrentRawStream(ordinal)


def checked(marks: Marks | None, ordinal: int, stream: int) -> Place | int:
    """Return a place, unless a graph is captured there and not on the current stream.

    Whether a call is captured was asked of the stream that is current.
    """
    torch: Any = sys.modules["torch"]
    current = torch._C._cuda_getCurrentRawStream(ordinal)
    if stream != current and marks is not None:
        here = bool(torch._C._cuda_isCurrentStreamCapturing())
        if marks.device.is_capturing(stream) != here:
            return STREAM_UNKNOWN
    return ordinal, stream


def start_replay(counted: Sequence[tuple[Marks, int]]) -> None:
    """Note that a graph is about to be launched, whose calls have been recorded.

    Args:
        counted: Markers of each communicator, and how many of its calls the graph holds.
    """
    device = counted[0][0].device
    try:
        stream = current_stream(device.ordinal)
        for marks, count in counted:
            marks.begin_replay(stream, count)
    except Exception as error:
        device.turn_off(repr(error))


def finish_replay(counted: Sequence[tuple[Marks, int]]) -> None:
    """Count the calls of a graph that has just been launched."""
    try:
        for marks, count in counted:
            marks.end_replay(count)
    except Exception as error:
        counted[0][0].device.turn_off(repr(error))


def current_stream(ordinal: int) -> int:
    """Return the stream that is current on a device, by its handle."""
    torch: Any = sys.modules["torch"]
    found: int = torch._C._cuda_getCurrentRawStream(ordinal)
    return found


def _is_capturing() -> bool:
    torch: Any = sys.modules["torch"]
    return bool(torch._C._cuda_isCurrentStreamCapturing())


session.on_reset(_grouped.clear)
