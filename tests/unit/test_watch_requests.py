"""Servers whose main thread waits in a queue that another thread fills."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.analysis.verdict import diagnose
from ncclscope.attach.stacks import PySpy, find_py_spy
from ncclscope.watch.requests import with_waiting_root

from ..support.cluster import Cluster

PLACES = {
    "queue": "queue.Queue().get()",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
}
SERVER = "threading.Thread(target=http.server.HTTPServer(('', 0), None).serve_forever).start()"


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("place", "served", "status"),
    [("queue", True, "unknown"), ("lock", True, "hung"), ("queue", False, "hung")],
)
def test_a_server_thread_without_requests_is_no_hang(
    tmp_path: Path, size: int, place: str, served: bool, status: str
) -> None:
    """A lock is no queue, and nobody fills a queue of a process without other threads."""
    program = find_py_spy()
    if program is None:
        pytest.skip("py-spy is not installed")
    cluster = Cluster(tmp_path / "rings", size)
    for _ in range(3):
        cluster.post(range(size), "world", "broadcast", root=0)
        cluster.post(range(size), "world")
    cluster.post(range(1, size), "world", "broadcast", root=0, done=False)
    path = tmp_path / "server.py"
    path.write_text(
        f"import http.server, queue, threading\n{SERVER if served else ''}\n{PLACES[place]}\n"
    )
    with subprocess.Popen([sys.executable, path]) as server:
        try:
            deadline = time.monotonic() + 30
            while not _is_at(program, server.pid, place):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            run = cluster.run(quiet=30.0)
            ranks = [replace(one, alive=True, pid=server.pid) for one in run.ranks]
            run = replace(run, ranks=tuple(ranks))
            verdict = diagnose(run)
            assert verdict.status == "hung"

            marked = with_waiting_root(run, verdict)
        finally:
            server.kill()

    assert diagnose(marked or run).status == status


def _is_at(program: str, pid: int, place: str) -> bool:
    """Return whether the main thread has come to the last line, and the server to its loop."""
    stacks = PySpy(program).read_one(pid)
    main = next((t for t in stacks.threads if t.name == "MainThread" and t.frames), None)
    if main is None or main.frames[0].line != 3:
        return False
    return place == "lock" or main.frames[-1].base in ("queue.py", "threading.py")
