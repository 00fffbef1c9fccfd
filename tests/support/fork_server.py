"""A fork server: runs Python programs in forks of a process that has imported the large modules.

Importing torch takes more than a second of processor time, and importing what the command line
needs a third of one. A test that starts a dozen interpreters only to run code in processes of
their own spends nearly all its time there. :class:`Popen` and :func:`run` take the arguments of
their namesakes in :mod:`subprocess`, and the command has to begin with ``sys.executable``. The
program runs in a process of its own, with its own environment, descriptors, working directory
and exit status. What differs from a new interpreter: torch is in ``sys.modules`` from the
beginning, and ``/proc/PID/cmdline`` is the server's. Tests of either use :mod:`subprocess`.

Each process that runs tests has at most one server for each set of modules. It ends with them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

__all__ = ["COMMANDS", "TORCH", "Popen", "run"]

ROOT = Path(__file__).parents[2]
COMMANDS = (
    *(f"ncclscope.commands.{name}" for name in ("check", "diagnose", "diff", "export", "report")),
    "ncclscope.commands.attach",
    "ncclscope.engine.registry",
    "ncclscope.engine.verdict",
    "ncclscope.readers",
    "ncclscope.render.console.attach",
    "ncclscope.render.html.page",
    "numpy",
    "rich.console",
    "rich_argparse",
)
"""What ncclscope's commands import."""
TORCH = ("torch.distributed", "numpy", "pytest", "ncclscope.readers")
"""What ranks import."""

_MOST = 1 << 18
_PR_SET_PDEATHSIG = 1


class Popen:
    """A Python program that runs in a fork of a server; the part of subprocess.Popen tests use.

    Args:
        command: ``[sys.executable, ...]``: a file, ``-c`` and a program, or ``-m`` and a module.
        preload: Modules that its server has imported; None for COMMANDS where the command is
            ``python -m ncclscope``, else TORCH.
        env: Its environment; None for a copy of this process's.
        cwd: Its working directory; None for this process's.
        stdin: A descriptor, an open file, PIPE, DEVNULL, or None for /dev/null.
        stdout: Likewise; None for this process's.
        stderr: Likewise, or STDOUT.
        text: Whether pipes are text.
        start_new_session: Whether it begins a session.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        preload: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        assert command[0] == sys.executable
        if preload is None:
            preload = COMMANDS if [*command[1:3]] == ["-m", "ncclscope"] else TORCH
        self.args = [*command]
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._text = text
        self._rest = b""
        with contextlib.ExitStack() as theirs:
            inputs = self._end(theirs, stdin, "stdin", os.devnull)
            outputs = self._end(theirs, stdout, "stdout", 1)
            errors = (
                outputs if stderr == subprocess.STDOUT else self._end(theirs, stderr, "stderr", 2)
            )
            self._status, status = socket.socketpair()
            theirs.callback(status.close)
            order = {
                "arguments": self.args[1:],
                "environment": dict(os.environ if env is None else env),
                "folder": os.fspath(cwd or os.getcwd()),
                "session": start_new_session,
            }
            message = json.dumps(order).encode()
            assert len(message) < _MOST
            socket.send_fds(
                _server(tuple(preload)), [message], [inputs, outputs, errors, status.fileno()]
            )
        self.pid = int(self._line())

    def _end(self, theirs: contextlib.ExitStack, what: Any, name: str, otherwise: Any) -> int:
        """Return the descriptor that the program is to have, and keep the other end of a pipe."""
        if what == subprocess.PIPE:
            reading, writing = os.pipe()
            ours, end = (writing, reading) if name == "stdin" else (reading, writing)
            mode = "w" if name == "stdin" else "r"
            setattr(self, name, os.fdopen(ours, mode if self._text else f"{mode}b"))
            theirs.callback(os.close, end)
            return end
        if what == subprocess.DEVNULL:
            what = os.devnull
        elif what is None:
            what = otherwise
        if isinstance(what, str):
            file = os.open(what, os.O_RDWR)
            theirs.callback(os.close, file)
            return file
        return what if isinstance(what, int) else int(what.fileno())

    def __enter__(self) -> Popen:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Return the exit status, or None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the program has ended; a signal is negative."""
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
            self._status.close()
        return self.returncode

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write the input, and return all that the program writes."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(input or ("" if self._text else b""))
                self.stdin.close()
        found: dict[IO[Any], bytes] = {s: b"" for s in (self.stdout, self.stderr) if s is not None}
        open_ones = list(found)
        while open_ones:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(open_ones, [], [], left)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            for stream in ready:
                data = os.read(stream.fileno(), 1 << 16)
                found[stream] += data
                if not data:
                    open_ones.remove(stream)
                    stream.close()
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        decoded = [
            None if stream is None else found[stream].decode() if self._text else found[stream]
            for stream in (self.stdout, self.stderr)
        ]
        return decoded[0], decoded[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the program with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """End the program with SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _line(self, timeout: float | None = None) -> bytes:
        while b"\n" not in self._rest:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            data = self._status.recv(64)
            assert data, "the fork server has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def run(
    command: Sequence[str],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as :func:`subprocess.run` does.

    Args:
        command: As for :class:`Popen`.
        capture_output: Whether to return its output and errors.
        check: Whether to raise CalledProcessError unless its status is 0.
        timeout: Seconds after which it is killed and TimeoutExpired is raised.
        **options: Of :class:`Popen`.
    """
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    assert process.returncode is not None
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


@cache
def _server(modules: tuple[str, ...]) -> socket.socket:
    """Start a server, and return the socket that takes its orders."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
    path = [str(ROOT / part) for part in ("", "patches", "analyzers")]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(path), *modules],
            stdin=theirs.fileno(),
            # Ranks share the cores, and only a process without threads may fork.
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
    atexit.register(_end, process, ours)
    return ours


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.wait()


_PROGRAM = """\
import json, sys
before = list(sys.path)
sys.path[:0] = json.loads(sys.argv[1])
from tests.support.fork_server import serve
serve(before, sys.argv[2:])
"""


def serve(path: Sequence[str], modules: Sequence[str]) -> None:
    """Import modules, then fork a program for each message on standard input until it closes.

    Args:
        path: ``sys.path`` of an interpreter that finds only what is installed.
        modules: What to import.
    """
    control = socket.socket(fileno=os.dup(0))
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MOST, 4)
        if not message:
            break
        # Waited for, so that their processor time is counted as this process's.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        if os.fork() == 0:
            control.close()
            _supervise(path, json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0):
            continue


def _supervise(
    path: Sequence[str],
    order: Mapping[str, Any],
    inputs: int,
    outputs: int,
    errors: int,
    control: int,
) -> NoReturn:
    """Fork the program, and write its pid and then its exit status."""
    status = socket.socket(fileno=control)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status.close()
        _become(path, order, (inputs, outputs, errors), parent)
    for descriptor in {inputs, outputs, errors, 0, 1, 2}:
        os.close(descriptor)
    with contextlib.suppress(OSError):
        status.sendall(f"{pid}\n".encode())
    _, ended = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        status.sendall(f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _become(
    path: Sequence[str], order: Mapping[str, Any], descriptors: Sequence[int], parent: int
) -> NoReturn:
    """Run the program, and end the process as an interpreter ends."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        if order["session"]:
            os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        for descriptor in {*descriptors} - {0, 1, 2}:
            os.close(descriptor)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        extra = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        sys.path[:] = [*extra, *path]
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        with _exit_status() as ended:
            _execute(order["arguments"])
        code = ended[0]
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _execute(arguments: Sequence[str]) -> None:
    kind, *rest = arguments
    if kind == "-u":
        kind, *rest = rest
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        space = {"__name__": "__main__", "__builtins__": __builtins__}
        exec(compile(rest[0], "<string>", "exec"), space)
    elif kind == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*arguments]
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


@contextlib.contextmanager
def _exit_status() -> Iterator[list[int]]:
    """Yield a list whose only item is the exit status after the block has ended."""
    ended = [0]
    try:
        yield ended
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        ended[0] = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        ended[0] = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
