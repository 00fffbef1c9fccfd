"""Reach the nodes of a running Ray cluster, each through an actor pinned to it.

An actor requests no CPU or GPU, so that it starts even if every GPU of the cluster hangs. It runs
the same modules as on one machine, so ncclscope must be installed in the environment of Ray's
workers. It ends when the driver that started it ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, cast

from ncclscope.collect.programs import failure_of, last_line
from ncclscope.errors import InputError, NothingFoundError
from ncclscope.untrusted import printable

_READ = 4 << 20
_LONGEST_REASON = 200
_KNOCK_SECONDS = 10


class _Results:
    """Stdout for the thread that writes results; other threads' output goes to stderr.

    Ray's own threads print cluster events to stdout, such as the loss of a node.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._owner = threading.current_thread()

    def write(self, text: str) -> int:
        mine = threading.current_thread() is self._owner
        return (self._stream if mine else sys.stderr).write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass(frozen=True)
class Member:
    """A node of the cluster.

    Attributes:
        name: Its name, which need not be unique.
        id: Ray's node id.
        alive: Whether Ray considers it alive.
    """

    name: str
    id: str
    alive: bool


def connect(address: str) -> Any:
    """Connect to the cluster, once per process.

    Returns:
        The module ``ray``.

    Raises:
        InputError: Ray is not installed, or there is no cluster.
    """
    # Otherwise Ray prints a notice about usage statistics.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray warns at each start that this will become the default.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed", "pip install ray") from None
    if not ray.is_initialized():
        if not isinstance(sys.stdout, _Results):
            sys.stdout = cast(TextIO, _Results(sys.stdout))
        try:
            _knock(os.environ.get("RAY_ADDRESS", "") if address == "auto" else address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = "" if address == "auto" else f" at {printable(address)}"
            raise InputError(
                f"there is no Ray cluster{where}: {_line(error)}", "run it on a node of the cluster"
            ) from None
    return ray


def _knock(address: str) -> None:
    """Raise OSError at once if no server listens there; Ray itself waits for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "//" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def members(ray: Any) -> list[Member]:
    """Return all nodes, including lost ones, on which a rank of the job may have run.

    Raises:
        NothingFoundError: No node is alive.
    """
    found = [
        Member(
            printable(str(node.get("NodeName") or node.get("NodeManagerHostname") or "node")),
            str(node.get("NodeID") or ""),
            bool(node.get("Alive")),
        )
        for node in ray.nodes()
    ]
    if not any(member.alive for member in found):
        raise NothingFoundError("no node of the Ray cluster is alive")
    return sorted(found, key=lambda member: (member.name, member.id))


def hire(ray: Any, kind: type, member: Member, *arguments: Any) -> Any:
    """Start an actor on a node; return its handle without waiting.

    Args:
        ray: The module from :func:`connect`.
        kind: Class of the actor.
        member: The node.
        *arguments: Arguments of its constructor.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return (
        ray.remote(kind)
        .options(
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(member.id, soft=False),
        )
        .remote(*arguments)
    )


def reason_of(error: BaseException) -> str:
    """Return the cause of a Ray error in one line."""
    cause = getattr(error, "cause", None)
    return _line(cause if isinstance(cause, BaseException) else error)


class Sender:
    """On a node: runs the command there, and forwards its output."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._program = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )

    def read(self) -> bytes:
        """Return the next bytes; empty at the end."""
        assert self._program.stdout is not None
        return self._program.stdout.read(_READ)

    def reason(self) -> str:
        """Return the last line of its stderr, or its status; empty if it succeeded."""
        assert self._program.stderr is not None
        return failure_of(self._program.stderr.read(), self._program.wait(), "it")

    def end(self) -> None:
        """Kill the program."""
        self._program.kill()
        self._program.wait()


class RayNode:
    """A node that sends its evidence through an actor.

    Args:
        ray: The module from :func:`connect`.
        member: The node.
        command: The command to run there.
    """

    def __init__(self, ray: Any, member: Member, command: Sequence[str]) -> None:
        self._ray = ray
        self._member = member
        self._command = command

    @property
    def name(self) -> str:
        """Name of the node."""
        return self._member.name

    @contextmanager
    def open(self, timeout: float) -> Iterator[_Pull]:
        """Run the command on the node, and yield its output.

        Args:
            timeout: Seconds until reading raises TimeoutError.

        Raises:
            InputError: The node is lost.
        """
        if not self._member.alive:
            raise InputError("Ray has lost this node")
        path = os.environ.get("PYTHONPATH", "")
        actor = hire(
            self._ray, Sender, self._member, self._command, {"PYTHONPATH": path} if path else {}
        )
        pull = _Pull(self._ray, actor, timeout)
        try:
            yield pull
        except self._ray.exceptions.GetTimeoutError:
            raise TimeoutError from None
        except self._ray.exceptions.RayError as error:
            raise InputError(reason_of(error)) from None
        finally:
            pull.close()


class _Pull:
    """The output of a node, requested one piece ahead, so that little data is buffered."""

    def __init__(self, ray: Any, actor: Any, timeout: float) -> None:
        self._ray = ray
        self._actor = actor
        self._deadline = time.monotonic() + timeout
        self._left = b""
        self._next = actor.read.remote()

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; empty at the end."""
        if not self._left:
            self._left = self._get(self._next)
            if self._left:
                self._next = self._actor.read.remote()  # arrives while this piece is unpacked
        data, self._left = self._left[:size], self._left[size:]
        return data

    def reason(self) -> str:
        """Return why the command failed; empty if it succeeded."""
        return str(self._get(self._actor.reason.remote()))

    def close(self) -> None:
        """Kill the actor and the program that it runs."""
        try:
            self._ray.get(self._actor.end.remote(), timeout=5)
        except self._ray.exceptions.RayError:
            pass  # the node is lost, or the actor is blocked in a read: killing it ends both
        self._ray.kill(self._actor)

    def _get(self, reference: Any) -> Any:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return self._ray.get(reference, timeout=left)


def _line(error: BaseException) -> str:
    # Ray's message begins with the node's traceback and ends with the error.
    return printable((last_line(str(error)) or type(error).__name__)[:_LONGEST_REASON])
