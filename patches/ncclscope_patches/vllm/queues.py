"""Notes what passes between an engine and its workers, and who waits for it.

A worker that has nothing to do stands in ``MessageQueue.dequeue``, and so does an engine whose
workers have not answered. In a hang this tells a rank that waits for its peers from one that
nobody has asked for anything. Only the newest of each is kept.
"""

from __future__ import annotations

from typing import Any

from ncclscope_patches.probes.noting import put_noting
from ncclscope_patches.probes.probe import Patch

__all__ = ["WORK", "VllmQueues"]

WORK = "work"
"""Detail of a ``dequeue`` that waits for as long as it takes: a worker's, for what comes next."""

_LONGEST = 64
"""Characters of a method's name: what is longer has been made up by a program."""
_NOTHING = (None, 0)
_FOR_WORK = (WORK, 0)


class VllmQueues(Patch):
    """Notes when a process begins and ends to send to a queue, and to wait for one."""

    name = "vllm_queues"
    target = "vllm.distributed.device_communicators.shm_broadcast"
    supports = "vllm 0.26 to 0.32"
    records = False

    def install(self, module: Any) -> None:
        put_noting(self, module.MessageQueue, "enqueue", "enqueue", _send)
        put_noting(self, module.MessageQueue, "dequeue", "dequeue", _wait)


def _send(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, int]:
    """Note what an engine asks its workers to do, where it is a method that has a name."""
    message = args[1] if len(args) > 1 else kwargs.get("obj")
    if type(message) is tuple and len(message) == 4 and type(message[0]) is str:
        name: str = message[0]
        if name.isidentifier() and len(name) <= _LONGEST:
            return name, 0
    return _NOTHING


def _wait(_args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, int]:
    return _FOR_WORK if kwargs.get("indefinite") else _NOTHING
