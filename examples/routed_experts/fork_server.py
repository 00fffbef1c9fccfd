"""Fork server of a run: imports torch once and forks all other processes.

:mod:`cluster` starts it with the plan as its argument. It prints the port of the front on standard
output, and ends with all its children when its standard input is closed.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import board
from engine import run_engine
from front import run_front
from plan import Plan
from tracing import finish
from wire import Channel
from worker import run_worker

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_END_SECONDS = 20.0
_POLL_SECONDS = 0.02


class ForkServer:
    """Processes of a run.

    Args:
        plan: Plan of the run.

    Attributes:
        port: Port of the front.
        children: Names of the forked processes, by process id.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.children: dict[int, str] = {}
        board.Board(plan, create=True)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        self._fronts = [self._pair() for _ in range(plan.dp)]
        self._leash = self._pair()
        self._pipes = [self._pair() for _ in range(plan.world_size)]

    def start(self) -> None:
        """Fork all processes."""
        plan = self.plan
        for rank, (_, theirs) in enumerate(self._pipes):
            self._fork(f"worker-{rank}", [theirs], run_worker, plan, rank, Channel(theirs))
        for replica, (_, front) in enumerate(self._fronts):
            ours = [end for end, _ in self._pipes[replica * plan.tp : (replica + 1) * plan.tp]]
            channels = [Channel(end) for end in ours]
            kept = [front, *ours]
            self._fork(
                f"engine-{replica}", kept, run_engine, plan, replica, Channel(front), channels
            )
        ends = [end for end, _ in self._fronts]
        held, leash = self._leash
        kept = [*ends, leash, self._listener]
        self._fork("front", kept, run_front, plan, ends, leash, self._listener)
        for own in self._sockets:
            if own is not held:
                own.close()

    def reap(self) -> list[tuple[str, int]]:
        """Return name and exit status of processes that have ended since the last call."""
        gone = []
        for pid in list(self.children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                gone.append((self.children.pop(pid), os.waitstatus_to_exitcode(status)))
        return gone

    def end(self) -> list[str]:
        """End all processes in order; return the names of those that did not."""
        self._leash[0].close()  # the front then ends the engines, and they their workers
        disorderly = []
        deadline = time.monotonic() + _END_SECONDS
        while self.children and time.monotonic() < deadline:
            disorderly += [name for name, status in self.reap() if status]
            time.sleep(_POLL_SECONDS)
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return [*disorderly, *self.children.values()]

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        ends = socket.socketpair()
        self._sockets += ends
        return ends

    def _fork(
        self, name: str, kept: list[socket.socket], work: Callable[..., None], *arguments: object
    ) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be(name, kept, parent, lambda: work(*arguments))
        self.children[pid] = name
        return pid

    def _be(
        self, name: str, kept: list[socket.socket], parent: int, work: Callable[[], None]
    ) -> NoReturn:
        """Do a child's work and end it, whatever happens."""
        status = 1
        try:
            libc = ctypes.CDLL(None)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            # Close the sockets of others: an open copy would hide the end of their peer.
            for other in self._sockets:
                if other not in kept:
                    other.close()
            work()
            finish()
            status = 0
        except BaseException:
            print(f"{name}:", file=sys.stderr)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)


def main() -> int:
    """Start a run's processes, and end them."""
    plan = Plan.from_json(sys.argv[1])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    server = ForkServer(plan)
    server.start()
    print(server.port, flush=True)
    while not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
        if gone := server.reap():
            print(f"{gone[0][0]} ended with status {gone[0][1]}", file=sys.stderr)
            return 1
    disorderly = server.end()
    if disorderly:
        print(f"did not end in order: {' '.join(disorderly)}", file=sys.stderr)
    return int(bool(disorderly))


if __name__ == "__main__":
    sys.exit(main())
