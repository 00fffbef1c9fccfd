"""Launch the markers by which the GPU counts a recorded call.

No function here raises: an error stops the counting, but neither the probe nor the call.
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

Place = tuple[int, int]
"""Number of the device in this process, and handle of the stream."""

Where = Callable[[tuple[Any, ...], dict[str, Any]], "Place | int"]
"""Return the place where a call runs, or an index into LOST that says why it is unknown."""

NOWHERE_YET: Place = (-1, 0)
"""Place in a process that has not used CUDA before this call."""

STREAM_UNKNOWN = 13
_UNSEEN_CAPTURE, _IN_GROUP, _OWN_STREAM = 8, 9, 3


Mark = tuple[
    "Marks", Place, "GraphCapture | None", bool, Where, tuple[Any, ...], dict[str, Any], bool
]
"""A call in progress: markers, place, graph, whether in an NCCL group, the function that finds its
place, its arguments, and whether only a return value of None proves that it ran there."""


in_groups: dict[int, list[Marks]] = {}
"""Communicators with calls in the open NCCL group, by thread identity."""


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
    """Prepare to count a recorded collective that is about to be enqueued.

    Args:
        marks: The markers of its communicator.
        where: Finds the place where it runs.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        flags: FLAG_* of its record.
        position: Position of its record; -1 if it became part of a graph.
        returns_none: Only a return value of None proves that it ran at that place.

    Returns:
        The mark, for :func:`finish`; None if the call is not counted.
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
    """Count a collective that has just been enqueued."""
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
            mine = in_groups.setdefault(threading.get_ident(), [])
            if marks not in mine:
                mine.append(marks)
    except Exception as error:
        marks.device.turn_off(repr(error))


def end_group(*, failed: bool) -> None:
    """Count the calls of the NCCL group that has just ended on this thread."""
    if not in_groups or scope.group_number():
        return
    for marks in in_groups.pop(threading.get_ident(), ()):
        try:
            if failed:
                marks.drop_group()
            else:
                marks.end_group(marks.device.capture() if _is_capturing() else None)
        except Exception as error:
            marks.device.turn_off(repr(error))


def of_tensor(tensor: Any) -> Place | int:
    """Return the place of work on a tensor: the current stream of its device."""
    ordinal = tensor.get_device()
    if ordinal < 0:
        return STREAM_UNKNOWN
    return ordinal, sys.modules["torch"]._C._cuda_getCurrentRawStream(ordinal)


def checked(marks: Marks | None, ordinal: int, stream: int) -> Place | int:
    """Return a place, unless that stream's capture state differs from the current stream's.

    The current stream decided whether the call was recorded as captured.

    Args:
        marks: The markers of the communicator.
        ordinal: Number of the device.
        stream: Handle of the stream.
    """
    torch: Any = sys.modules["torch"]
    current = torch._C._cuda_getCurrentRawStream(ordinal)
    if stream != current and marks is not None:
        here = bool(torch._C._cuda_isCurrentStreamCapturing())
        if marks.device.is_capturing(stream) != here:
            return STREAM_UNKNOWN
    return ordinal, stream


def start_replay(counted: Sequence[tuple[Marks, int]]) -> None:
    """Prepare to count the calls of a graph that is about to be launched.

    Args:
        counted: Markers of each communicator, and its number of calls in the graph.
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
    """Return the handle of a device's current stream."""
    torch: Any = sys.modules["torch"]
    found: int = torch._C._cuda_getCurrentRawStream(ordinal)
    return found


def _is_capturing() -> bool:
    torch: Any = sys.modules["torch"]
    return bool(torch._C._cuda_isCurrentStreamCapturing())


session.on_reset(in_groups.clear)
