"""Nodes in this process: what a cluster's actors do, without the way there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ncclscope.remote.fleet import LostNodeError
from ncclscope.remote.node_server import NodeServer
from ncclscope.remote.reporter import Reporter


class LocalClient:
    """Reaches depots and reporters of some directories.

    Args:
        directories: By the name of the node.
    """

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self.names = tuple(directories)
        self._paths = [str(path) for path in directories.values()]
        self._depots: dict[int, NodeServer] = {}
        self._reporters = [Reporter([path]) for path in self._paths]
        self.lost: set[int] = set()

    def restart(self, node: int) -> None:
        """Connect to a node again: its reporter has reported nothing so far."""
        self._reporters[node] = Reporter([self._paths[node]])
        self._depots.pop(node, None)

    def summaries(self) -> dict[int, bytes | str]:
        found: dict[int, bytes | str] = {}
        for node, path in enumerate(self._paths):
            self._depots[node] = NodeServer([path])
            found[node] = "gone" if node in self.lost else self._depots[node].summary()
        return found

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        found = {}
        for node, request in requests.items():
            try:
                found[node] = self._depots[node].answer(request)
            except LookupError:  # as from a server on a host, which answers that it cannot
                raise LostNodeError(node, f"{self.names[node]} sent an invalid answer") from None
        return found

    def reports(self) -> dict[int, bytes | str]:
        return {
            node: "gone" if node in self.lost else reporter.report()
            for node, reporter in enumerate(self._reporters)
        }

    def ask_reporters(self, method: str, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        return {node: getattr(self._reporters[node], method)(one) for node, one in requests.items()}
