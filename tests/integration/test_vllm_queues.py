"""vLLM's own message queues between real processes: which reader keeps the others waiting."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.attach.host.queues import with_queues
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.errors import NcclscopeError
from ncclscope.model import Rank
from tests.integration.c10d_ranks import main, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

READERS = 2
DEADLINE = 240.0
STALL = 1.0


def module() -> Any:
    import vllm.distributed.device_communicators.shm_broadcast as shm_broadcast

    return shm_broadcast


def write(send: Callable[[Any], None]) -> None:
    """Make a queue, hand it to the readers, send, and stay."""
    handle = os.environ["MEETING_POINT"]
    queue = module().MessageQueue(READERS, READERS, max_chunk_bytes=4096, max_chunks=3)
    Path(f"{handle}.new").write_bytes(pickle.dumps(queue.export_handle()))
    os.rename(f"{handle}.new", handle)
    queue.wait_until_ready()
    send(queue)
    threading.Event().wait()


def read(rank: int, read_all: bool, sleeps: bool = False) -> None:
    from ncclscope.tracing import session

    session.describe(rank=rank, world_size=READERS)
    session.current()
    handle = Path(os.environ["MEETING_POINT"])
    while not handle.exists():
        time.sleep(0.05)
    queue = module().MessageQueue.create_from_handle(pickle.loads(handle.read_bytes()), rank)
    queue.wait_until_ready()
    queue.dequeue()
    if sleeps:
        queue._spin_condition.wait = lambda timeout_ms=None: threading.Event().wait()
    while read_all:
        queue.dequeue(indefinite=True)
    threading.Event().wait()


def full(rank: int) -> None:
    """Rank 1 reads one message and no more; rank 2 writes until there is no room."""

    def send(queue: Any) -> None:
        for number in range(9):
            queue.enqueue(number)

    if rank == READERS:
        write(send)
    read(rank, read_all=rank == 0)


def missed(rank: int) -> None:
    """Rank 1 sleeps after its first message: nothing wakes it for the second one."""

    def send(queue: Any) -> None:
        queue.enqueue("first")
        go = Path(os.environ["MEETING_POINT"] + ".go")
        while not go.exists():
            time.sleep(0.05)
        queue.enqueue("second")

    if rank == READERS:
        write(send)
    read(rank, read_all=True, sleeps=rank == 1)


def read_all(rings: Path) -> list[Rank]:
    """Return the processes that noted a queue, the writer included."""
    try:
        run = open_run(rings)
    except NcclscopeError:
        return []
    return [rank for rank in (*run.ranks, *run.others) if "queues" in rank.details]


def judge(rings: Path, function: str, send: bool) -> Verdict:
    environment = {"MEETING_POINT": str(rings / "handle"), "NCCLSCOPE_DIR": str(rings)}
    processes = [
        start(__file__, function, {**environment, "RANK": str(rank)}, interpreter=True)
        for rank in range(READERS + 1)
    ]
    try:
        deadline = time.monotonic() + DEADLINE
        while True:
            assert time.monotonic() < deadline, "the processes do not come to where they wait"
            time.sleep(0.2)
            try:
                run = with_queues(open_run(rings))
            except NcclscopeError:
                continue
            idle = [rank.activities.get("dequeue") for rank in run.ranks]
            # Sent only once rank 1 waits in dequeue: otherwise it reads the message before that.
            if send and len(idle) == READERS and all(one and one.count == 2 for one in idle):
                (rings / "handle.go").touch()
            verdict = diagnose(run, live_stall_seconds=STALL)
            if verdict.status == "hung":
                return verdict
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        # The writer would have removed it.
        for queue in {one["name"] for rank in read_all(rings) for one in rank.details["queues"]}:
            (Path("/dev/shm") / queue).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("full", "has not read 3 blocks of a message queue"),
        ("missed", "it missed the notification"),
    ],
)
def test_reader_that_does_not_read_is_named(rings: Path, function: str, words: str) -> None:
    verdict = judge(rings, function, send=function == "missed")

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (1,))
    assert words in verdict.summary


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(globals())
