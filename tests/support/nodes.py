"""Nodes of a job on one machine: each with a host name, processes and /dev/shm of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support import fork_server
from tests.support.programs import ROOT

SHARED = "/dev/shm/rings"
"""Where rings are on each node: the same place, and another directory."""

UNSHARE = ("unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc")

RANKS = """
import os, signal, sys
import ncclscope

pids = []
first, count, size, odd = map(int, sys.argv[1:5])
for rank in range(first, first + count):
    pid = os.fork()
    if pid:
        pids.append(pid)
        continue
    tracer = ncclscope.Tracer(sys.argv[5], rank=rank, world_size=size)
    comm = tracer.communicator(key="K", label="tp:0", ranks=range(size), backend="nccl")
    for step in range(40):
        op = "all_gather" if rank == odd and step == 30 else "all_reduce"
        tracer.record(comm, op, shape=(step + 1, 8), dtype="float32", redop="sum")
    os.write(1, b".")
    signal.pause()
os.write(1, b".")
signal.pause()
"""

ENTER = """#!/bin/sh
# In place of the program that reaches a node: {name}
{words}
case $host in
    gone) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255 ;;
    slow) exec sleep 1000 ;;
    bare) echo "sh: 1: ncclscope: not found" >&2; exit 127 ;;
    mute) exit 0 ;;
    cut) {enter} node-a {run} | head -c 1500; exit ;;
    loud) echo "Welcome to node-a"; exec {enter} node-a {run} ;;
esac
exec {enter} "$host" {run}
"""

NSENTER = """#!/bin/sh
name=$1; shift
exec nsenter --uts --mount --pid --target "$(cat "{folder}/$name.pid")" -- "$@"
"""


def environment(**more: str) -> dict[str, str]:
    """Return variables under which our sources are found."""
    path = os.pathsep.join(str(ROOT / part) for part in ("", "analyzers", "patches"))
    return {**os.environ, "PYTHONPATH": path, **more}


def can_unshare() -> bool:
    """Return whether this user may make namespaces."""
    if not shutil.which("unshare") or not shutil.which("nsenter"):
        return False
    done = subprocess.run(
        [*UNSHARE, "true"],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


class Nodes:
    """Nodes, and programs to reach them.

    Args:
        folder: For files of ours; stand-ins are in ``bin`` below it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._running: list[subprocess.Popen[bytes]] = []
        self._write("enter", NSENTER.format(folder=folder))

    def start(self, name: str, first: int, count: int, size: int, odd: int) -> None:
        """Start a node with some ranks of the job, and wait until they hang."""
        program = self.folder / "ranks.py"
        program.write_text(RANKS)
        script = (
            'hostname "$0" && mount -t tmpfs -o size=256m none /dev/shm && '
            f'exec "{sys.executable}" "{program}" {first} {count} {size} {odd} {SHARED}'
        )
        node = subprocess.Popen(
            [*UNSHARE, "--kill-child", "sh", "-c", script, name],
            env=environment(),
            stdout=subprocess.PIPE,
        )
        self._running.append(node)
        assert node.stdout is not None
        answer = b""
        while len(answer) < count + 1:
            data = os.read(node.stdout.fileno(), 100)
            assert data, f"{name} ended"
            answer += data
        children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
        (self.folder / f"{name}.pid").write_text(children[0])

    def stand_in(self, name: str, words: str, run: str) -> None:
        """Make a program on PATH that sets ``$host`` and run the rest on that node."""
        enter = str(self.bin / "enter")
        self._write(name, ENTER.format(name=name, words=words, enter=enter, run=run))

    def program(self, name: str, source: str) -> None:
        """Make a program on PATH."""
        self._write(name, f"#!/bin/sh\n{source}\n")

    def run(self, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        """Run ncclscope with these programs first on PATH."""
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return ncclscope(*arguments, **{"PATH": path, **more})

    def end(self) -> None:
        """End all of them."""
        for node in self._running:
            with contextlib.suppress(ProcessLookupError):
                node.send_signal(signal.SIGKILL)
            node.wait(30)
            if node.stdout is not None:
                node.stdout.close()

    def _write(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)


def ncclscope(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return fork_server.run(
        [sys.executable, "-m", "ncclscope", *map(str, arguments)],
        env=environment(**{"NCCL_RAS_ADDR": "127.0.0.1:1", **more}),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    """A job of four ranks on node-a and node-b, in which rank 2 has left the common sequence."""
    nodes = Nodes(folder)
    try:
        nodes.start("node-a", 0, 2, 4, odd=2)
        nodes.start("node-b", 2, 2, 4, odd=2)
        yield nodes
    finally:
        nodes.end()
