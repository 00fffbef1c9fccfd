"""What serves a node's rings, whatever the way to it: a node server and a reporter."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.errors import InputError
from ncclscope.remote.node_server import NodeServer
from ncclscope.remote.reporter import Reporter

__all__ = ["Keeper"]


class Keeper:
    """On a node: a node server, recreated for each summary, and a reporter.

    Args:
        paths: Directories of the rings; NCCLSCOPE_DIR if empty.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._server: NodeServer | None = None
        self._reporter: Reporter | None = None

    def summary(self) -> bytes:
        """Read the rings again and return their summary."""
        self._server = NodeServer(self._paths)
        return self._server.summary()

    def answer(self, request: bytes) -> bytes:
        """Return the answers to a request.

        Raises:
            InputError: There was no summary before, as after a reconnection.
        """
        if self._server is None:
            raise InputError("the node has started anew since its summary")
        return self._server.answer(request)

    def report(self) -> bytes:
        """Return what changed since the last report."""
        return self._reports().report()

    def hashes(self, request: bytes) -> bytes:
        """Return running hashes."""
        return self._reports().hashes(request)

    def newest(self, request: bytes) -> bytes:
        """Return the newest calls of a ring."""
        return self._reports().newest(request)

    def _reports(self) -> Reporter:
        if self._reporter is None:
            self._reporter = Reporter(self._paths)
        return self._reporter
