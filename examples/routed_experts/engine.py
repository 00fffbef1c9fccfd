"""A scheduler process: the one event loop that feeds a replica's workers.

The engines of all replicas keep step. One that has nothing to do has its workers run dummy steps,
and every few steps they agree, by an all_reduce, on whether anybody has anything left.
"""

from __future__ import annotations

import datetime
import json
import queue
import select
import signal
import threading
import time
import traceback
from collections import deque
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from board import Board
from plan import Plan
from scheduler import Finished, Request, Scheduler, Step
from tracing import trace
from ways import way_of
from wire import Array, Channel, Frame
from worker import routed_delta

__all__ = ["Engine"]

_JOIN = datetime.timedelta(minutes=2)


class Engine:
    """One replica's.

    Args:
        plan: Of the run.
        replica: Which.
        front: Where requests come from.
        workers: The replica's; the first one answers.
    """

    def __init__(self, plan: Plan, replica: int, front: Channel, workers: list[Channel]) -> None:
        self.plan = plan
        self.replica = replica
        self.front = front
        self.workers = workers
        self.way = way_of(plan, replica)
        self.scheduler = Scheduler(plan, self.way)
        self._entry = Board(plan).engine(replica)
        self._flying: deque[tuple[int, Step]] = deque()
        self._ended: list[str] = []
        self._number = 0
        self._seen = 0
        self._stopping = False
        self._wire: list[dict[str, int]] = []
        self._answers: queue.SimpleQueue[tuple[dict[str, Any], list[Array]] | None] = (
            queue.SimpleQueue()
        )
        self._sender = threading.Thread(target=self._send_answers, name="answers", daemon=True)
        self._sender.start()
        self._polled = time.perf_counter()
        if plan.dp > 1:
            dist.init_process_group(
                "gloo",
                init_method=plan.meeting("engines"),
                rank=replica,
                world_size=plan.dp,
                timeout=_JOIN,
            )
            timeout = datetime.timedelta(seconds=plan.timeout)
            self._others = dist.new_group(timeout=timeout, group_desc="engines")

    def run(self) -> None:
        """Go on until the front says that it is over."""
        for worker in self.workers:
            worker.receive()  # it is ready
        if self.plan.dp > 1:
            dist.barrier()  # nobody waits for another's start, which may take long, in a step
        self._answers.put(({"ready": self.replica}, []))
        self._polled = time.perf_counter()
        while True:
            self._poll(0)
            # What comes after the agreement, the others may not have received yet.
            seen, stopping = self._seen, self._stopping
            if self._number % self.plan.agree_every == 0 and not self._go_on():
                while self._flying:
                    self._poll(None)
                if stopping:
                    break
                if self._seen == seen:
                    self._poll(None)
                continue
            self._launch()
            while len(self._flying) >= self.plan.depth:
                self._poll(None)
        for worker in self.workers:
            worker.send({"stop": True})
        self._answers.put(None)
        self._sender.join()
        self.plan.wire_log(self.replica).write_text(json.dumps(self._wire))
        self.way.close()
        if self.plan.dp > 1:
            dist.destroy_process_group()

    def _poll(self, timeout: float | None) -> None:
        """Take what has come; waits for it where a timeout is not 0."""
        self._note_gap()
        ready, _, _ = select.select([self.front, self.workers[0]], [], [], timeout)
        self._note_poll()
        for channel in ready:
            frame = channel.receive()
            if channel is self.front:
                self._take_request(frame)
            else:
                self._take_output(frame)

    def _note_poll(self) -> None:
        self._polled = time.perf_counter()
        self._entry.set("busy_since_us", time.monotonic_ns() // 1000)

    def _note_gap(self) -> None:
        """Note the time since the last poll for arrivals."""
        self._entry.set("busy_since_us", 0)
        self._entry.most("stall_us", time.perf_counter() - self._polled)
        self._entry.most("experts_us", self.scheduler.routing_seconds)
        self.scheduler.routing_seconds = 0.0

    def _go_on(self) -> bool:
        """Agree with the other engines on whether there is anything to do.

        They stop only where all have seen the same last request: each of them hears of every
        request, so that whatever comes later wakes them all.
        """
        if self.plan.dp == 1:
            return self.scheduler.busy
        self._note_gap()
        begun = time.perf_counter()
        state = torch.tensor([int(self.scheduler.busy), self._seen, -self._seen])
        try:
            dist.all_reduce(state, op=dist.ReduceOp.MAX, group=self._others)
        except RuntimeError:
            traceback.print_exc()
            self._entry.add("failed")
            while True:  # as one on NCCL would; whoever examines it ends it
                signal.pause()
        busy, most, least = state.tolist()
        self._note_poll()
        self._entry.most("agree_us", self._polled - begun)
        return bool(busy or most != -least)

    def _take_request(self, frame: Frame) -> None:
        header = frame.header
        self._seen = header["number"]
        self._stopping |= "stop" in header
        if "name" not in header:
            return
        tokens = frame.arrays[0].tolist()
        request = Request(
            header["name"], tokens, len(tokens), header["max_tokens"], header["wanted"]
        )
        self.scheduler.add(request)

    def _launch(self) -> None:
        """Send a step to the workers."""
        step = self.scheduler.schedule()
        header: dict[str, Any] = {
            "step": self._number,
            "parts": [
                [
                    part.request.name,
                    part.position,
                    part.count,
                    part.samples,
                    part.request.wanted,
                ]
                for part in step.parts
            ],
            "ended": self._ended,
        }
        tokens = [token for part in step.parts for token in part.tokens]
        arrays = [np.asarray(tokens, np.int64), self._slots(step)]
        for worker in self.workers:
            worker.send(header, arrays)
        self._ended = []
        self._flying.append((self._number, step))
        self._number += 1
        self._entry.add("steps")

    def _slots(self, step: Step) -> Array:
        """Return the KV slot of each token."""
        size = self.plan.block_size
        slots = [np.empty(0, np.int64)]
        for part in step.parts:
            positions = np.arange(part.position, part.position + part.count)
            blocks = np.asarray(part.blocks, np.int64)
            slots.append(blocks[positions // size] * size + positions % size)
        return np.concatenate(slots)

    def _take_output(self, frame: Frame) -> None:
        number, step = self._flying.popleft()
        if frame.header["step"] != number:
            raise RuntimeError(f"output of step {frame.header['step']}, not of step {number}")
        finished = self.scheduler.update(step, frame.arrays[0].tolist(), routed_delta(frame))
        self._wire.append(
            {
                "rows": sum(part.count for part in step.parts),
                "wanted": sum(part.count for part in step.parts if part.request.wanted),
                "frame": frame.size,
                "routed": frame.array_bytes - frame.arrays[0].nbytes,
            }
        )
        self._entry.largest("ended", len(finished))
        for done in finished:
            self._answer(done)
        self._entry.set("preemptions", self.scheduler.preemptions)
        self._entry.set("cached_tokens", self.scheduler.cached_tokens)

    def _answer(self, done: Finished) -> None:
        request, routed = done.request, done.routed
        self._ended.append(request.name)
        header: dict[str, Any] = {"finished": request.name}
        arrays: list[Array] = [np.asarray(request.tokens[request.prompt :], np.int64)]
        if routed is not None:
            header["prompt_tokens"] = routed.prompt_tokens
            arrays += [routed.ids, routed.missing]
        self._answers.put((header, arrays))

    def _send_answers(self) -> None:
        """Send them beside the event loop, which does not wait for the front."""
        while (answer := self._answers.get()) is not None:
            self.front.send(*answer)


def run_engine(plan: Plan, replica: int, front: Channel, workers: list[Channel]) -> None:
    """What the process does."""
    trace(plan.engine_rings, replica, plan.dp)
    Engine(plan, replica, front, workers).run()
