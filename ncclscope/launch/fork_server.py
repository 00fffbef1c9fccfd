"""Forks ranks from a process that has imported what they need.

Importing torch takes a second of processor time in each process that does it; a fork takes none.
The server is a process of its own, since whoever launches ranks may have threads, and a fork
copies only one of them.

Standard input is a socket to the launcher. It carries an :class:`ForkOrder`, and its end means "end
every rank": the kernel sends that as well when the launcher has been killed. The server answers
one JSON object a line on the same socket: ``pids``, then ``rank`` and ``status`` for each rank
that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RankFunction = Callable[[str, int], int]
"""Takes the argument of the order and the rank, and returns the exit status of its process."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


@dataclass(frozen=True)
class ForkOrder:
    """Order to fork ranks.

    Attributes:
        function: ``package.module:function``, a :data:`RankFunction`; importing the module imports
            what all ranks need.
        argument: Argument of the function.
        names: Process name of each rank, at most 15 characters.
        workplace: Directory of the run, removed at the end.
    """

    function: str
    argument: str
    names: Sequence[str]
    workplace: str


def start(order: ForkOrder, log: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a server, and return its process and the launcher's end of its socket.

    Args:
        order: What it is to fork.
        log: File that it and its ranks print to.
    """
    package_root = str(Path(__file__).parents[2])
    search = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(search),
        # One thread each: ranks share the cores, and only a process without threads may fork.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        # All ranks are here, and a container's host name often leads nowhere.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ours, theirs = socket.socketpair()
    with theirs, log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "ncclscope.launch.fork_server"],
            stdin=theirs.fileno(),
            stdout=output,
            stderr=output,
            env=environment,
            # An empty directory, since "-m" puts it first on the search path.
            cwd=order.workplace,
            # Ctrl-C is for whoever launches the ranks, who then ends them.
            start_new_session=True,
        )
    ours.sendall(json.dumps(asdict(order)).encode() + b"\n")
    return server, ours


def main() -> None:
    """Serve one order from beginning to end."""
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    order = ForkOrder(**json.loads(_read_line(control)))
    _serve(order, control)
    # The launcher does this too, unless it was killed.
    shutil.rmtree(order.workplace, ignore_errors=True)


def _serve(order: ForkOrder, control: socket.socket) -> None:
    module, _, name = order.function.partition(":")
    run_rank: RankFunction = getattr(importlib.import_module(module), name)
    with _child_signals() as woken:
        if _is_over(control):
            return
        gc.freeze()
        server = os.getpid()
        children: dict[int, int] = {}
        for rank, title in enumerate(order.names):
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                _be_rank(run_rank, order.argument, rank, title, server)
            children[pid] = rank
        _report(control, {"pids": list(children)})
        _attend(control, woken, children)


def _read_line(control: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\n"):
        received = control.recv(65536)
        if not received:
            sys.exit(0)
        data += received
    return data.decode()


def _report(control: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the launcher may be gone
        control.sendall(json.dumps(message).encode() + b"\n")


@contextlib.contextmanager
def _child_signals() -> Iterator[socket.socket]:
    """Yield a socket that becomes readable when a child ends."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    with woken, waker:
        woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        yield woken
        signal.set_wakeup_fd(-1)


def _attend(control: socket.socket, woken: socket.socket, children: dict[int, int]) -> None:
    """Report ranks that end until the launcher closes its socket, then kill the others.

    Children are reaped here and nowhere else, so a pid that is signalled is theirs.
    """
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                woken.recv(4096)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                rank = children.pop(pid)
                _report(control, {"rank": rank, "status": os.waitstatus_to_exitcode(status)})
        if control in ready and _is_over(control):
            break
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _is_over(control: socket.socket) -> bool:
    """Return whether the launcher has closed its socket."""
    try:
        return not control.recv(4096, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _be_rank(run_rank: RankFunction, argument: str, rank: int, title: str, server: int) -> None:
    """Run a rank in the forked child and end the process, whatever happens."""
    status = 1
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:  # it ended before the line above
            os._exit(1)
        libc.prctl(_PR_SET_NAME, title.encode(), 0, 0, 0)
        status = run_rank(argument, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # Past the threads of gloo and of the stream, and the interpreter's own goodbyes,
        # which belong to the process this one was forked from.
        os._exit(status)


if __name__ == "__main__":
    main()
