"""The process between the launcher and the ranks: imports torch once and forks them.

Importing torch takes a second of processor time in each process that does it; a fork takes
none. It has to happen in a process of its own, since whoever opens a laboratory may have
threads, and a fork copies only one.

What it is told arrives on standard input, which is a socket: an assignment, then, one day, the
end of the stream. That means "end everything", and the kernel sends it as well when the
launcher has been killed. It answers one JSON object a line on the same socket.
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
import sys
import traceback
from collections.abc import Callable, Iterator

from ncclscope.lab.assignment import Assignment
from ncclscope.lab.progress import Board

__all__ = ["main"]

RankFunction = Callable[[Assignment, int, Board], int]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def main() -> None:
    """Serves one assignment from beginning to end."""
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    assignment = Assignment.from_json(_read_line(control))
    _serve(assignment, control)
    # The launcher does this too, unless it was killed.
    shutil.rmtree(assignment.workplace, ignore_errors=True)


def _serve(assignment: Assignment, control: socket.socket) -> None:
    # This is where torch is imported.
    run_rank: RankFunction = importlib.import_module("ncclscope.lab.rank").run_rank
    board = Board(assignment.board)
    with _child_signals() as woken:
        if _is_over(control):
            return
        gc.freeze()
        nursery = os.getpid()
        children: dict[int, int] = {}
        for rank in range(assignment.program.world_size):
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                _be_rank(run_rank, assignment, rank, board, nursery)
            children[pid] = rank
        _tell(control, {"pids": list(children)})
        _attend(control, woken, children)


def _read_line(control: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\n"):
        received = control.recv(65536)
        if not received:
            sys.exit(0)
        data += received
    return data.decode()


def _tell(control: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the launcher may be gone
        control.sendall(json.dumps(message).encode() + b"\n")


@contextlib.contextmanager
def _child_signals() -> Iterator[socket.socket]:
    """Yields a socket that becomes readable when a child ends."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    with woken, waker:
        woken.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        yield woken
        signal.set_wakeup_fd(-1)


def _attend(control: socket.socket, woken: socket.socket, children: dict[int, int]) -> None:
    """Reports what ends until the launcher has enough, then ends what is left.

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
                _tell(control, {"rank": rank, "status": os.waitstatus_to_exitcode(status)})
        if control in ready and _is_over(control):
            break
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _is_over(control: socket.socket) -> bool:
    """Whether the launcher has closed its end."""
    try:
        return not control.recv(4096, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _be_rank(
    run_rank: RankFunction, assignment: Assignment, rank: int, board: Board, nursery: int
) -> None:
    """Runs a rank in the forked child and ends it, whatever happens."""
    status = 1
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != nursery:  # it ended before the line above
            os._exit(1)
        dp_rank, tp_rank = assignment.program.place(rank)
        libc.prctl(_PR_SET_NAME, f"lab_DP{dp_rank}_TP{tp_rank}".encode(), 0, 0, 0)

        status = run_rank(assignment, rank, board)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # Past the threads of gloo and of the stream, and the interpreter's own goodbyes,
        # which belong to the process this one was forked from.
        os._exit(status)


if __name__ == "__main__":
    main()
