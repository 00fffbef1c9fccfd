"""CUDA graphs and their replays in trace JSONL.

A graph has its own line: ``{"graph": 3, "calls": 62, "parts": {"KEY": [62, DIGEST]}}``. The line
of a replayed call refers to it: ``"graph": 3, "replay": 812, "graph_call": 5,
"graph_calls": 62``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclscope.model.graphs import Graph, Replay
from ncclscope.model.signature import MASK
from ncclscope.untrusted import integer, integers, number, text

MOST = 1 << 16
"""Maximum number of graphs read per process."""
_LARGEST = 1 << 62
_MOST_PARTS = 1 << 10


def line_of(graph: Graph) -> dict[str, Any]:
    """Return the line of a graph."""
    parts = {key: list(part) for key, part in graph.parts.items()}
    return {"graph": graph.number, "calls": graph.length, "parts": parts}


def read(line: Mapping[str, Any]) -> Graph | None:
    """Return the graph of a line; None for a line of another type."""
    place, parts = integer(line.get("graph")), line.get("parts")
    if place is None or not isinstance(parts, dict) or len(parts) > _MOST_PARTS:
        return None
    found = {}
    for name, part in parts.items():
        key, numbers = text(name), integers(part)
        if key is not None and numbers is not None and len(numbers) == 2:
            found[key] = numbers[0], numbers[1] & MASK
    return Graph(place, number(line.get("calls"), _LARGEST), found)


def fields_of(replay: Replay) -> dict[str, int]:
    """Return the additional fields of a replayed call's line."""
    return {
        "replay": replay.number,
        "graph_call": replay.call,
        "graph_calls": replay.calls,
    }


def read_replay(line: Mapping[str, Any]) -> Replay | None:
    """Return the replay that a call's line refers to; None if the call was not replayed."""
    if integer(line.get("replay")) is None:
        return None
    names = ("replay", "graph_call", "graph_calls")
    return Replay(*(number(line.get(name), _LARGEST) for name in names))
