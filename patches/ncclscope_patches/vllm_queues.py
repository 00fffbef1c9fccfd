"""Notes what passes between an engine and its workers, and who waits for it.

A worker that has nothing to do stands in ``MessageQueue.dequeue``, and so does an engine whose
workers have not answered. In a hang this tells a rank that waits for its peers from one that
nobody has asked for anything. Only the newest of each is kept.
"""

from __future__ import annotations

from typing import Any

from ncclscope.ring.activity import Begun, Slot
from ncclscope.tracing import session
from ncclscope_patches.probe import Patch

__all__ = ["WORK", "VllmQueues"]

WORK = "work"
"""Detail of a ``dequeue`` that waits for as long as it takes: a worker's, for what comes next."""

_LONGEST = 64
"""Characters of a method's name: what is longer has been made up by a program."""


class VllmQueues(Patch):
    """Notes when a process begins and ends to send to a queue, and to wait for one."""

    name = "vllm_queues"
    target = "vllm.distributed.device_communicators.shm_broadcast"
    supports = "vllm 0.26 to 0.32"

    def install(self, module: Any) -> None:
        queue = module.MessageQueue
        for name, enter in (("enqueue", _send), ("dequeue", _wait)):
            function = getattr(queue, name, None)
            if callable(function) and not self.has_replaced(function):
                self.put(queue, name, self.guard_scope(function, enter, _leave))


def _send(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Slot, Begun] | None:
    message = args[1] if len(args) > 1 else kwargs.get("obj")
    return _begin("enqueue", _method(message))


def _wait(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Slot, Begun] | None:
    return _begin("dequeue", WORK if kwargs.get("indefinite") else None)


def _begin(name: str, detail: str | None) -> tuple[Slot, Begun] | None:
    tracer = session.current()
    if tracer is None:
        return None
    slot = tracer.activity(name)
    return slot, slot.begin(detail)


def _leave(token: tuple[Slot, Begun]) -> None:
    slot, begun = token
    slot.end(begun)


def _method(message: Any) -> str | None:
    """Returns what an engine asks its workers to do, where it is a method that has a name."""
    if type(message) is tuple and len(message) == 4 and type(message[0]) is str:
        name: str = message[0]
        return name if name.isidentifier() and len(name) <= _LONGEST else None
    return None
