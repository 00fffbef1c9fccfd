"""CUDA graphs as they were recorded: what is in one, and where in its replays a call was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Graph", "Replay"]


@dataclass(frozen=True, slots=True)
class Graph:
    """A CUDA graph that a process captured, with the calls in it.

    Attributes:
        number: Its number in the process, from 1, among the graphs that hold calls.
        length: Calls in it, sends and receives included.
        parts: By key of the communicator, how many collectives are on it and their running
            hash: the same in every process whose graph holds the same collectives.
    """

    number: int
    length: int
    parts: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Replay:
    """Where in the replays of a CUDA graph a call was made.

    Attributes:
        number: How often the graph had been replayed, this time included; 0 where not recorded.
        call: Place of the call in the graph, from 1; 0 where not recorded.
        calls: Calls in the graph, on whatever communicator; 0 where not recorded.
    """

    number: int = 0
    call: int = 0
    calls: int = 0

    def to_dict(self, graph: int | None) -> dict[str, int | None]:
        """Returns it in the terms of the JSON verdict.

        Args:
            graph: Number of the graph.
        """
        return {"graph": graph, "number": self.number, "call": self.call, "calls": self.calls}
