"""The old way, next to the pipeline: the same routing, and what only the old way does."""

from __future__ import annotations

import fcntl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from examples.routed_experts.shared_memory_reference import SharedMemoryReference
from ncclscope_patches.routed_experts import Collector, SlotStore, StepDelta
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from tests.routed.rows import SHAPE, delta, forward, rows

BLOCK, SLOTS = 4, 64


@pytest.fixture
def sides(rings: Path) -> Iterator[tuple[SharedMemoryReference, SharedMemoryReference]]:
    path = Path(tempfile.mkdtemp(dir=rings)) / "routed"
    worker = SharedMemoryReference(SHAPE, SLOTS, path, create=True)
    scheduler = SharedMemoryReference(SHAPE, SLOTS, path, create=False)
    yield worker, scheduler
    scheduler.close()
    worker.close()
    assert list(path.parent.iterdir()) == []


def save(worker: SharedMemoryReference, first: int, slots: list[int]) -> None:
    buffer = CaptureBuffer(SHAPE, SLOTS)
    buffer.begin()
    forward(buffer, first, len(slots))
    worker.save(buffer.ids[:, : len(slots)], torch.tensor(slots))


def test_both_sides_see_the_same(
    sides: tuple[SharedMemoryReference, SharedMemoryReference],
) -> None:
    worker, scheduler = sides
    save(worker, 0, [8, 9, 20])
    assert np.array_equal(scheduler.read(np.array([8, 9, 20])), rows(0, 3))
    assert (worker.device_waits, worker.locks, scheduler.locks) == (2, 1, 1)


def test_it_waits_in_every_step_even_if_nobody_asks(
    sides: tuple[SharedMemoryReference, SharedMemoryReference],
) -> None:
    worker, _ = sides
    for number in range(5):
        save(worker, number, [number])
    assert (worker.device_waits, worker.locks) == (10, 5)


def test_a_reader_keeps_the_worker_from_its_next_step(
    sides: tuple[SharedMemoryReference, SharedMemoryReference],
) -> None:
    worker, scheduler = sides
    done = threading.Event()

    def one_step() -> None:
        save(worker, 0, [1])
        done.set()

    with scheduler._lock_file.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=one_step)
        thread.start()
        while worker.device_waits == 0:
            thread.join(0.01)
        assert worker.locks == 0
        assert not done.is_set()
    thread.join(30)
    assert done.is_set()


def test_it_hands_out_what_an_earlier_request_left_in_a_block(
    sides: tuple[SharedMemoryReference, SharedMemoryReference],
) -> None:
    worker, scheduler = sides
    slots = np.arange(4)
    save(worker, 0, slots.tolist())
    # A request whose KV comes from elsewhere is given the same block, and computes nothing.
    assert np.array_equal(scheduler.read(slots), rows(0, 4))

    collector = Collector(SHAPE, BLOCK, store=SlotStore(SHAPE, BLOCK))
    for request in ("first", "second"):
        collector.admit(request, 4)
        collector.renew([0])
        collector.attach(request, [0])
        ticket = collector.schedule(request, 0, 4)
        assert ticket is not None
        step: StepDelta | None = delta(first=rows(0, 4)) if request == "first" else None
        collector.deliver([ticket], step)
        result = collector.finish(request, 1)
        assert result is not None
        assert result.missing_count == (0 if request == "first" else 4)
