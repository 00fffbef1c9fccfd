"""A worker process: a host that takes steps from its scheduler, and a device that runs them."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from board import Board
from device import Device
from model import Model, make_groups
from plan import Plan
from scheduler import UNKNOWN
from shared_memory_reference import SharedMemoryReference
from tracing import trace
from truth import Numbers, next_token
from wire import Array, Channel, Frame

from ncclscope.tracing import session
from ncclscope_patches.routed_experts import RequestRows, StepDelta
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.transfer import Flight
from ncclscope_patches.routed_experts.worker import RoutedExpertsWorker

__all__ = ["Worker", "routed_delta"]


class Worker:
    """One rank.

    Args:
        plan: Of the run.
        rank: Which.
        scheduler: Where steps come from. The first worker of a replica answers.
    """

    def __init__(self, plan: Plan, rank: int, scheduler: Channel) -> None:
        self.plan = plan
        self.rank = rank
        self.replica, self.tp_rank = divmod(rank, plan.tp)
        self.answers = self.tp_rank == 0
        self._scheduler = scheduler
        self._entry = Board(plan).worker(rank)
        self._tracer = session.current()
        self._segment: SharedMemoryReference | None = None
        if plan.way == "old" and self.answers:
            self._segment = SharedMemoryReference(
                plan.shape, plan.slots, plan.segment(self.replica), create=True
            )
        self.capture = CaptureBuffer(plan.shape, plan.budget)
        self.routed = RoutedExpertsWorker(self.capture, depth=plan.depth + 1, sends=self.answers)
        groups = make_groups(plan, rank, self._entry)
        self._model = Model(plan, groups, self.capture, self._entry)
        self._device = Device(self._fail)
        self._last: dict[str, int] = {}
        self._outputs: queue.SimpleQueue[tuple[int, list[int], Flight | None] | None] = (
            queue.SimpleQueue()
        )
        self._sender = threading.Thread(target=self._send_outputs, name="outputs", daemon=True)
        self._sender.start()

    def run(self) -> None:
        """Take steps until there are no more."""
        while True:
            frame = self._scheduler.receive()
            if frame.header.get("stop"):
                break
            if self.plan.way == "old" and self.plan.save:
                self._run_old(frame)
            else:
                self._device.launch(self._step, frame)
        self._device.synchronize()
        self._outputs.put(None)
        self._sender.join()
        if self._segment is not None:
            self._segment.close()
        dist.destroy_process_group()

    def _run_old(self, frame: Frame) -> None:
        """Wait for the device twice, which `.cpu()` does on a GPU, and writes all of the step."""
        begun = time.perf_counter()
        self._device.synchronize()
        slots = frame.arrays[1]
        waited = time.perf_counter() - begun
        self._device.launch(self._step, frame)
        self._device.synchronize()
        begun = time.perf_counter()
        if self._segment is not None and len(slots):
            rows = self.capture.ids[:, : len(slots)]
            self._segment.save(rows, torch.from_numpy(slots))
        self._entry.most("save_us", waited + time.perf_counter() - begun)
        if self.answers:
            self._outputs.put((frame.header["step"], self._sampled, None))

    def _step(self, frame: Frame) -> None:
        """Run a step, on the device."""
        number, parts = frame.header["step"], frame.header["parts"]
        for name in frame.header["ended"]:
            self._last.pop(name, None)
        # An idle replica runs a token of nobody's beside the others.
        tokens, positions = np.zeros(1, np.int64), np.zeros(1, np.int64)
        if parts:
            tokens, positions = self._batch(parts, frame.arrays[0])
        if self._tracer is not None:
            self._tracer.step(number, tokens=len(tokens) if parts else 0, dummy=not parts)
        if self.plan.way == "new":
            self.routed.begin_step(_wanted_rows(parts))
        elif self.plan.way == "old" and self.plan.save:
            self.capture.begin()
        self._model.forward(tokens, positions)
        flight = self.routed.end_step()
        self._sampled = self._sample(parts, tokens, positions)
        self._entry.add("steps")
        if self.answers and not (self.plan.way == "old" and self.plan.save):
            self._outputs.put((number, self._sampled, flight))

    def _batch(self, parts: list[list[Any]], sent: Numbers) -> tuple[Numbers, Numbers]:
        """Return tokens and positions, those tokens filled in that only this worker knows."""
        tokens = sent.copy()
        positions = np.concatenate(
            [np.arange(position, position + count) for _, position, count, _, _ in parts]
        )
        end = 0
        for name, _, count, _, _ in parts:
            end += count
            if tokens[end - 1] == UNKNOWN:
                tokens[end - 1] = self._last[name]
        return tokens, positions

    def _sample(self, parts: list[list[Any]], tokens: Numbers, positions: Numbers) -> list[int]:
        sampled = []
        end = 0
        for name, _, count, samples, _ in parts:
            end += count
            token = next_token(int(tokens[end - 1]), int(positions[end - 1]))
            sampled.append(token if samples else UNKNOWN)
            if samples:
                self._last[name] = token
        return sampled

    def _send_outputs(self) -> None:
        """Put outputs together, beside host and device, and send them in their order."""
        while True:
            output = self._outputs.get()
            if output is None:
                return
            number, sampled, flight = output
            header: dict[str, Any] = {"step": number}
            arrays: list[Array] = [np.asarray(sampled, np.int32)]
            if flight is not None:
                delta = flight.take()
                header["routed"] = [[name, name in delta.missing] for name in delta.rows]
                for name, ids in delta.rows.items():
                    arrays.append(ids)
                    if name in delta.missing:
                        arrays.append(delta.missing[name])
            self._scheduler.send(header, arrays)

    def _fail(self, error: Exception) -> None:
        """A collective has failed; the worker stays where it is, as one on NCCL does."""
        traceback.print_exception(error, file=sys.stderr)
        if self._tracer is not None:
            self._tracer.describe(last_error=f"{type(error).__name__}: {error}"[:500])
        self._entry.add("failed")


def _wanted_rows(parts: list[list[Any]]) -> list[RequestRows]:
    rows = []
    first = 0
    for name, _, count, _, wanted in parts:
        if wanted:
            rows.append(RequestRows(name, first, count))
        first += count
    return rows


def routed_delta(frame: Frame) -> StepDelta | None:
    """Read the routing in a worker's output; None where it has none."""
    if "routed" not in frame.header:
        return None
    arrays = iter(frame.arrays[1:])
    rows, missing = {}, {}
    for name, holes in frame.header["routed"]:
        rows[name] = next(arrays)
        if holes:
            missing[name] = next(arrays)
    return StepDelta(rows, missing)


def run_worker(plan: Plan, rank: int, scheduler: Channel) -> None:
    """What the process does."""
    trace(plan.rings, rank, plan.world_size)
    worker = Worker(plan, rank, scheduler)
    scheduler.send({"ready": rank})
    worker.run()
