"""Recorded CUDA graphs: their calls, and the position of a call in their replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Graph:
    """A CUDA graph that a process captured, with the calls in it.

    Attributes:
        number: Number of the graph in the process, from 1, among the graphs that hold calls.
        length: Number of calls in it, sends and receives included.
        parts: By communicator key, the number of its collectives and their running hash, equal in
            every process whose graph holds the same collectives.
    """

    number: int
    length: int
    parts: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Replay:
    """The position of a call in the replays of a CUDA graph.

    Attributes:
        number: Number of the replay, from 1; 0 where not recorded.
        call: Index of the call in the graph, from 1; 0 where not recorded.
        calls: Number of calls in the graph, on all communicators; 0 where not recorded.
    """

    number: int = 0
    call: int = 0
    calls: int = 0

    def to_dict(self, graph: int | None) -> dict[str, int | None]:
        """Return the replay in the terms of the JSON verdict.

        Args:
            graph: Number of the graph.
        """
        return {"graph": graph, "number": self.number, "call": self.call, "calls": self.calls}
