"""Record the message queues between an engine and its workers.

An idle worker waits in ``MessageQueue.dequeue``, and so does an engine whose workers have not
answered. In a hang, this separates ranks that wait for their peers from ranks without work. Only
the newest activity of each kind is kept. Name and geometry of each queue's shared memory are
noted, too, so that a reader of the ring can see which process has not read which block.
"""

from __future__ import annotations

from typing import Any

from ncclscope.model.activities import WORK
from ncclscope.tracing import session
from ncclscope_patches.probes.noting import put_noting
from ncclscope_patches.probes.probe import Note

_LONGEST = 64
"""Longest name of a method in characters; longer ones are generated."""
_MOST_QUEUES = 8
"""Queues noted by one process: a ring has 8 KiB for its whole description."""
_queues: list[dict[str, Any]] = []
_NOTHING = (None, 0)
_FOR_WORK = (WORK, 0)


class VllmQueues(Note):
    """Records when a process sends to a queue or waits for one."""

    name = "vllm_queues"
    target = "vllm.distributed.device_communicators.shm_broadcast"

    def install(self, module: Any) -> None:
        queue = module.MessageQueue
        if hasattr(queue, "create_from_handle"):
            self.put(queue, "__init__", self.guard(queue.__init__, after=_written))
            read = staticmethod(self.guard(queue.create_from_handle, after=_read))
            self.put(queue, "create_from_handle", read)
        put_noting(self, module.MessageQueue, "enqueue", "enqueue", _send)
        put_noting(self, module.MessageQueue, "dequeue", "dequeue", _wait)


def _forget() -> None:
    """Forget the parent's queues, in the child after a fork."""
    _queues.clear()
    session.describe(queues=[])


session.on_reset(_forget)


def _written(token: Any, _result: Any) -> None:
    _note(token[0][0], None)


def _read(_token: Any, result: Any) -> None:
    _note(result, result.local_reader_rank)


def _note(queue: Any, reader: int | None) -> None:
    """Note the shared memory of a queue in the ring; its flags show who has read which block."""
    buffer = getattr(queue, "buffer", None)
    memory = getattr(buffer, "shared_memory", None)
    if buffer is None or memory is None or len(_queues) >= _MOST_QUEUES:
        return
    about = {
        "name": memory.name.lstrip("/"),
        "readers": buffer.n_reader,
        "chunk": buffer.max_chunk_bytes,
        "chunks": buffer.max_chunks,
    }
    _queues.append(about if reader is None else {**about, "reader": reader})
    session.describe(queues=list(_queues))


def _send(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, int]:
    """Return the method that an engine calls on its workers, if it is called by name.

    And which of them is to answer, counted from 1; 0 for all of them.
    """
    message = args[1] if len(args) > 1 else kwargs.get("obj")
    if type(message) is tuple and len(message) == 4 and type(message[0]) is str:
        name: str = message[0]
        if name.isidentifier() and len(name) <= _LONGEST:
            answers = message[3]
            return name, answers + 1 if type(answers) is int else 0
    return _NOTHING


def _wait(_args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, int]:
    return _FOR_WORK if kwargs.get("indefinite") else _NOTHING
