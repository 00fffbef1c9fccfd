"""Servers that wait for requests elsewhere than in the kernel's poll."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.attach.stacks import PySpy, find_py_spy
from ncclscope.engine.verdict import diagnose
from ncclscope.watch import requests
from ncclscope.watch.requests import with_waiting_root
from tests.unit.test_watch import STALL, Job

from ..support.cluster import Cluster

LOCK = "lock = threading.Lock(); lock.acquire(); lock.acquire()"
PLACES = {
    "queue": "queue.Queue().get()",
    "lock": LOCK,
    "pipe": "import multiprocessing; pipes = multiprocessing.Pipe(); pipes[0].recv()",
    "thread": "threading.Thread(target=lambda: queue.Queue().get()).start(); event.wait()",
    "locked thread": f"threading.Thread(target=lambda: exec('{LOCK}')).start(); event.wait()",
    "event": "event.wait()",
}
SERVER = "threading.Thread(target=http.server.HTTPServer(('', 0), None).serve_forever).start()"


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("place", "served", "status"),
    [
        ("queue", True, "unknown"),
        ("queue", False, "hung"),
        ("lock", True, "hung"),
        ("pipe", False, "unknown"),
        ("thread", True, "unknown"),
        ("thread", False, "hung"),
        ("locked thread", True, "hung"),
        ("event", True, "hung"),
    ],
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
        f"import http.server, queue, threading; event = threading.Event()\n"
        f"{SERVER if served else ''}\n{PLACES[place]}\n"
    )
    with subprocess.Popen([sys.executable, path]) as server:
        try:
            deadline = time.monotonic() + 30
            while not _is_at(program, server.pid, place):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            run = cluster.run(quiet=30.0)
            here = {"alive": True, "pid": server.pid, "host": socket.gethostname()}
            ranks = [replace(one, **here) for one in run.ranks]
            run = replace(run, ranks=tuple(ranks))
            verdict = diagnose(run)
            assert verdict.status == "hung"

            marked = with_waiting_root(run, verdict)
        finally:
            server.kill()

    assert diagnose(marked or run).status == status


def _is_at(program: str, pid: int, place: str) -> bool:
    """Return whether the main thread has come to the last line, and the others to their places."""
    stacks = PySpy(program).read_one(pid)
    main = next((t for t in stacks.threads if t.name == "MainThread" and t.frames), None)
    if main is None or main.frames[0].line != 3:
        return False
    ends = ("queue.py", "threading.py", "connection.py")
    return "lock" in place or main.frames[-1].base in ends


@pytest.mark.parametrize("works", [True, False])
def test_a_request_that_hangs_before_its_first_call_is_a_hang(
    rings: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    """Only its process shows that the server, which was idle, has received it."""
    idle = True
    monkeypatch.setattr(requests, "_waits", lambda _rank: idle)
    job = Job(rings, 2)
    job.start()
    for _ in range(3):
        job.post(op="broadcast", root=0)
    job.post(1, op="broadcast", root=0, done=False)
    for _ in range(100):
        assert not job.poll(1.0).in_trouble
    assert job.poll().status == "unknown"

    idle = False
    assert not job.poll(STALL).in_trouble
    if works:
        job.post(0, op="broadcast", root=0)
        job.tracers[1].complete(4)
        assert not job.poll(STALL / 2).in_trouble
    statuses = {job.poll(1.0).status for _ in range(3 * int(STALL))}

    assert ("hung" in statuses) is not works
