"""Nodes of a job that is too large to be made: each says what one that exists says, as itself.

The job is that of :mod:`benchmarks.runners.rings`: each node is a replica of eight ranks with a
tensor parallel group of its own, a member of eight data parallel groups, and of the world. What a
node says differs in its ranks, its own group's name, and the members of groups.
"""

from __future__ import annotations

from typing import Any

from ncclscope.remote.node_server import NodeServer
from ncclscope.remote.spelling import pack, unpack

__all__ = ["Replica"]


class Replica:
    """One node of such a job.

    Args:
        depot: Of a node that exists.
        node: The number of the node in the job.
        size: Ranks of a node.
        ranks: Of the job.
    """

    def __init__(self, node_server: NodeServer, node: int, size: int, ranks: int) -> None:
        self._node_server = node_server
        self._first = node * size
        self._size, self._ranks = size, ranks
        self._theirs = ""

    def summary(self) -> bytes:
        """Return the summary of the other, as this node's."""
        summary = unpack(self._node_server.summary())
        for comm in summary["comms"]:
            label, own = comm[1], comm[0].rpartition(" ")[2]
            if label == "tp:0":
                self._theirs, own = comm[0], str(self._first)
            comm[0] = f"{label} {own}"
            comm[3] = f"{label} {own}"  # of its members: no two nodes need to agree otherwise
        for place, rank in enumerate(summary["ranks"]):
            about = rank["about"]
            number = self._first + place
            about[0], about[1] = number, self._ranks
            about[2], about[3] = f"node-{number // self._size}", 1000 + number
            about[5] = {"tp": str(place), "dp": str(number // self._size)}
        return pack(summary)

    def answer(self, request: bytes) -> bytes:
        """Return the answers of the other."""
        questions = [self._translated(one) for one in unpack(request)]
        asked = [one for one in questions if one[0] != "members"]
        summary: dict[str, Any] = unpack(self._node_server.answer(pack(asked)))
        found = iter(summary["answers"])
        summary["answers"] = [
            self._members(one[1]) if one[0] == "members" else next(found) for one in questions
        ]
        return pack(summary)

    def _translated(self, question: list[Any]) -> list[Any]:
        if question[0] != "members" and str(question[2]).startswith("tp:0"):
            question[2] = self._theirs
        return question

    def _members(self, digest: str) -> list[int]:
        label, _, first = digest.rpartition(" ")
        if label == "world:0":
            return list(range(self._ranks))
        if label == "tp:0":
            return list(range(int(first), int(first) + self._size))
        return list(range(int(first), self._ranks, self._size))
