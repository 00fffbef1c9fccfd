"""What serves a node's rings, whatever the way to it: a node server and a reporter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ncclscope.errors import InputError
from ncclscope.remote.node_server import NodeServer
from ncclscope.remote.reporter import Reporter


class Keeper:
    """On a node: a node server, recreated for each summary, and a reporter.

    Args:
        paths: Directories of the rings; NCCLSCOPE_DIR if empty.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._server: NodeServer | None = None
        self._reporter: Reporter | None = None

    def serve(self, method: str, request: bytes = b"") -> bytes:
        """Return the answer to a request.

        Args:
            method: One of :data:`ncclscope.remote.frames.METHODS`. ``summary`` reads the rings
                again.
            request: What the node server or the reporter takes, packed.

        Raises:
            InputError: There was no summary before the first query, as after a reconnection.
        """
        if method == "summary":
            self._server = NodeServer(self._paths)
            return self._server.summary()
        if method == "answer":
            if self._server is None:
                raise InputError("the node has started anew since its summary")
            return self._server.answer(request)
        if self._reporter is None:
            self._reporter = Reporter(self._paths)
        if method == "report":
            return self._reporter.report()
        answer: Callable[[bytes], bytes] = getattr(self._reporter, method)
        return answer(request)
