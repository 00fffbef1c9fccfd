"""Nodes of a Ray cluster that runs, each reached through an actor that is pinned to it.

An actor asks for no processor: on a cluster whose every GPU hangs it still gets its place. What
it does is done by the same modules that do it on one machine, so ncclscope must be installed
where Ray's workers run. It ends with whoever has started it.
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
from typing import Any, TextIO, cast

from ncclscope.errors import InputError, NothingFoundError
from ncclscope.untrusted import printable

__all__ = ["Member", "RayNode", "connect", "hire", "members", "reason_of"]

_READ = 4 << 20
_LONGEST_REASON = 200
_KNOCK_SECONDS = 10


class _Results:
    """Standard output for the thread that writes results; what others print is talk.

    Ray's threads print there what they hear of the cluster, such as that a node is gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._owner = threading.current_thread()

    def write(self, text: str) -> int:
        mine = threading.current_thread() is self._owner
        return (self._stream if mine else sys.stderr).write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Member:
    """A node of the cluster.

    Attributes:
        name: Its name; other nodes may have the same.
        id: Ray's.
        alive: Whether Ray holds it to be.
    """

    def __init__(self, name: str, id: str, alive: bool) -> None:
        self.name = name
        self.id = id
        self.alive = alive


def connect(address: str) -> Any:
    """Join the cluster, once in the life of a process.

    Returns:
        The module.

    Raises:
        InputError: Ray is not installed, or there is no cluster.
    """
    # What it says of itself is none of our results.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray says at each start that this will be so one day.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed", "pip install 'ncclscope[ray]'") from None
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
    """Find out at once that nobody is there; Ray itself waits for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "//" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def members(ray: Any) -> list[Member]:
    """Return the nodes, also those that are gone: a job's rank may have been on one of them.

    Raises:
        NothingFoundError: None is alive.
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
    """Start an actor on a node, and return its handle at once."""
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
    """Say in one line why something on a node failed."""
    cause = getattr(error, "cause", None)
    return _line(cause if isinstance(cause, BaseException) else error)


class Sender:
    """On a node: runs the command there, and hands on what it writes."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._program = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )

    def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        assert self._program.stdout is not None
        return self._program.stdout.read(_READ)

    def reason(self) -> str:
        """Return the last line that it complained in; nothing where it ended well."""
        assert self._program.stderr is not None
        said = self._program.stderr.read().decode("utf-8", "replace").strip().splitlines()
        status = self._program.wait()
        if not status:
            return ""
        return said[-1] if said else f"it ended with status {status}"

    def end(self) -> None:
        """End the program."""
        self._program.kill()
        self._program.wait()


class RayNode:
    """A node that delivers through an actor.

    Args:
        ray: From :func:`connect`.
        member: Which node.
        command: What to run there.
    """

    def __init__(self, ray: Any, member: Member, command: Sequence[str]) -> None:
        self._ray = ray
        self._member = member
        self._command = command

    @property
    def name(self) -> str:
        """The node's."""
        return self._member.name

    @contextmanager
    def open(self, timeout: float) -> Iterator[_Pull]:
        """Has it send.

        Raises:
            InputError: It is gone.
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
    """Asks for the next bytes when they are wanted, so that few of them wait anywhere."""

    def __init__(self, ray: Any, actor: Any, timeout: float) -> None:
        self._ray = ray
        self._actor = actor
        self._deadline = time.monotonic() + timeout
        self._left = b""
        self._next = actor.read.remote()

    def read(self, size: int) -> bytes:
        """Return what has come."""
        if not self._left:
            self._left = self._get(self._next)
            if self._left:
                self._next = self._actor.read.remote()  # comes while this is unpacked
        data, self._left = self._left[:size], self._left[size:]
        return data

    def reason(self) -> str:
        """Ask the node."""
        return str(self._get(self._actor.reason.remote()))

    def close(self) -> None:
        """End the actor and what it runs."""
        try:
            self._ray.get(self._actor.end.remote(), timeout=5)
        except self._ray.exceptions.RayError:
            pass  # it is gone, or stuck in a read: then its end is that of the program's pipe
        self._ray.kill(self._actor)

    def _get(self, reference: Any) -> Any:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return self._ray.get(reference, timeout=left)


def _line(error: BaseException) -> str:
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Ray puts the traceback of the node first and the error last.
    return printable((said[-1] if said else type(error).__name__)[:_LONGEST_REASON])
