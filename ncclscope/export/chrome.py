"""Chrome's trace event format (JSON), for ui.perfetto.dev, chrome://tracing and scripts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncclscope.export.intervals import (
    LAST_SIGN,
    Axis,
    Interval,
    TimelineTrack,
    arguments_of,
    axis_of,
    gpu_moment,
    open_target,
    rank_name,
)
from ncclscope.model import Run

Event = dict[str, Any]


def write_chrome(run: Run, file: Path) -> None:
    """Write a process for each rank, with a thread for each communicator.

    Times are microseconds since the first call, whose time is in ``otherData``. Flows join calls
    with the same sequence number on a communicator.
    """
    axis = axis_of(run)
    with open_target(file) as raw, io.TextIOWrapper(raw, encoding="utf-8") as out:
        about = {
            "tool": "ncclscope",
            "start_ns": str(axis.start_ns),
            "times": "posting, of the hosts" if axis.timed else "none, order only",
            "length": "a call lasts until the rank posts its next one",
        }
        out.write('{"displayTimeUnit":"ns","otherData":')
        out.write(json.dumps(about, separators=(",", ":")))
        out.write(',"traceEvents":[\n')
        for number, event in enumerate(_events(run, axis)):
            out.write(",\n" if number else "")
            out.write(json.dumps(event, separators=(",", ":")))
        out.write("\n]}\n")


def _events(run: Run, axis: Axis) -> Iterator[Event]:
    for rank in run.ranks:
        yield _name(rank.rank, 0, "process_name", name=rank_name(rank))
        yield _name(rank.rank, 0, "process_sort_index", sort_index=rank.rank)
        if rank.last_seen_ns and axis.timed:
            time = _micros(max(rank.last_seen_ns - axis.start_ns, 0))
            yield {"ph": "i", "pid": rank.rank, "tid": 1, "ts": time, "name": LAST_SIGN, "s": "p"}
    places: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for track in axis.tracks(run):
        number = track.order
        yield _name(track.rank.rank, number, "thread_name", name=track.title)
        yield _name(track.rank.rank, number, "thread_sort_index", sort_index=number)
        for interval in track.intervals:
            yield _slice(axis, track, interval)
            if not track.p2p:
                place = (interval.start_ns, track.rank.rank, number)
                places.setdefault((track.key, interval.call.seq), []).append(place)
        if (counted := gpu_moment(axis, track)) is not None:
            time_ns, text, known = counted
            yield {
                "ph": "i",
                "pid": track.rank.rank,
                "tid": number,
                "ts": _micros(time_ns - axis.start_ns),
                "name": text,
                "cat": "gpu",
                "s": "t",
                "args": known,
            }
    yield from _flows(axis, places)


def _name(process: int, thread: int, what: str, **about: object) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": about}


def _slice(axis: Axis, track: TimelineTrack, interval: Interval) -> Event:
    known = dict(arguments_of(interval.call))
    if interval.open:
        known["end"] = "not known to have completed"
    return {
        "ph": "X",
        "pid": track.rank.rank,
        "tid": track.order,
        "ts": _micros(interval.start_ns - axis.start_ns),
        "dur": _micros(interval.end_ns - interval.start_ns),
        "name": interval.call.op,
        "cat": track.name,
        "args": known,
    }


def _flows(
    axis: Axis, places: dict[tuple[str, int], list[tuple[int, int, int]]]
) -> Iterator[Event]:
    for number, found in enumerate(places.values(), 1):
        found.sort()
        for order, (time, process, thread) in enumerate(found):
            if len(found) > 1:
                event: Event = {
                    "ph": "s" if order == 0 else "f" if order == len(found) - 1 else "t",
                    "pid": process,
                    "tid": thread,
                    "ts": _micros(time - axis.start_ns),
                    "id": number,
                    "name": "same number",
                    "cat": "seq",
                }
                if event["ph"] == "f":
                    event["bp"] = "e"
                yield event


def _micros(nanoseconds: int) -> float:
    return round(nanoseconds / 1000, 3)
