"""Record what a service does outside of collectives: requests that wait, and engines at rest.

Idle workers only show that they have no work. Whether somebody waits for them shows in the process
that received the requests, and in the engine that schedules them. Both note numbers only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from ncclscope.clock import now_ns
from ncclscope.model.activities import ASKED, INPUT, LOOP, PAUSED, REQUESTS, UNSCHEDULED
from ncclscope.model.metadata import COORDINATOR, FRONTEND
from ncclscope.ring.activity import Slot
from ncclscope.tracing import session
from ncclscope.tracing.notes import Notes, Phase, leave
from ncclscope_patches.probes.noting import put_noting
from ncclscope_patches.probes.probe import Note

_NOTED_AFTER_NS = 1_000_000_000
"""Steps without tokens are noted from here on: between two steps there are many short ones."""
_TICK_SECONDS = 1.0
_BLOCKED = {
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": "for a grammar",
    "WAITING_FOR_FSM": "for a grammar",
    "WAITING_FOR_REMOTE_KVS": "for KV blocks of another engine",
    "WAITING_FOR_STREAMING_REQ": "for more input",
}
_MOST_COUNTED = 256
"""Waiting requests whose state is read."""
_NOTHING = (None, 0)


class VllmEngineInput(Note):
    """Records when an engine waits for requests, which is rest, unlike its waits for answers.

    It takes them in within the same method, and carries out there what clients ask of it.
    """

    name = "vllm_engine_input"
    target = "vllm.v1.engine.core"

    def install(self, module: Any) -> None:
        engine = getattr(module, "EngineCoreProc", None)
        if engine is not None:
            put_noting(self, engine, "_process_input_queue", INPUT, _NOTHING)
            put_noting(self, engine, "_handle_client_request", ASKED, _asked)


class VllmCoordinator(Note):
    """Gives a ring to the process that wakes the engines of a deployment: nobody waits for it."""

    name = "vllm_coordinator"
    target = "vllm.v1.engine.coordinator"

    def install(self, module: Any) -> None:
        self.replace(module.DPCoordinatorProc, "process_input_socket", before=self._begin)

    def _begin(self, *_: Any) -> None:
        if session.current() is not None:
            session.describe(role=COORDINATOR)


class VllmEventLoop(Note):
    """Records when the event loop of a server last ran: while it is blocked, nobody is answered."""

    name = "vllm_event_loop"
    target = "vllm.entrypoints.launchers.launcher"

    def __init__(self) -> None:
        super().__init__()
        self._notes = Notes(LOOP)

    def install(self, module: Any) -> None:
        self.replace(module, "serve_http", before=self._begin)

    def _begin(self, *_: Any) -> None:
        if session.current() is not None:
            session.describe(role=FRONTEND)
            self._tick(asyncio.get_running_loop())

    def _tick(self, loop: Any) -> None:
        if self.active:
            try:
                self._notes.begin("", "")
                loop.call_later(_TICK_SECONDS, self._tick, loop)
            except Exception as error:
                self.fail(error)


class VllmEventLoopBefore(VllmEventLoop):
    """The same, where vLLM before 0.32 has it."""

    target = "vllm.entrypoints.launcher"


class VllmScheduler(Note):
    """Records since when a scheduler has admitted no request, though some wait."""

    name = "vllm_scheduler"
    target = "vllm.v1.core.sched.scheduler"

    def __init__(self) -> None:
        super().__init__()
        self._unscheduled, self._paused = Notes(UNSCHEDULED), Notes(PAUSED)
        self._since = 0
        self._phase: Phase | None = None
        self._pause: Phase | None = None
        session.on_reset(self._forget)

    def install(self, module: Any) -> None:
        self.replace(module.Scheduler, "schedule", after=self._scheduled)
        self.replace(module.Scheduler, "set_pause_state", after=self._set_pause)

    def _scheduled(self, token: Any, output: Any) -> None:
        scheduler = token[0][0]
        if output.total_num_scheduled_tokens or not (count := _unfinished(scheduler)):
            self._since = 0
            if self._phase is not None:
                leave(self._phase)
                self._phase = None
            return
        now = now_ns()
        self._since = self._since or now
        if self._phase is None and now - self._since > _NOTED_AFTER_NS:
            text = _described(scheduler)
            self._phase = self._unscheduled.begin(text, "", count, self._since)

    def _set_pause(self, token: Any, _result: Any) -> None:
        state = int(token[0][0].pause_state)
        if state and self._pause is None:
            self._pause = self._paused.begin("", "", state)
        elif not state and self._pause is not None:
            leave(self._pause)
            self._pause = None

    def _forget(self) -> None:
        self._since, self._phase, self._pause = 0, None, None


class VllmRequests(Note):
    """Records how many requests have no answer yet, and when the newest part of one came."""

    name = "vllm_requests"
    target = "vllm.v1.engine.output_processor"

    def __init__(self) -> None:
        super().__init__()
        self._slot: Slot | None = None
        self._phase: Phase | None = None
        self._streaming = 0
        session.on_reset(self._forget)

    def install(self, module: Any) -> None:
        processor = module.OutputProcessor
        self.replace(processor, "add_request", after=self._counted)
        self.replace(processor, "process_outputs", after=self._answered)
        self.replace(processor, "abort_requests", after=self._counted)

    def _answered(self, token: Any, _result: Any) -> None:
        args, kwargs = token
        if args[1] if len(args) > 1 else kwargs.get("engine_core_outputs"):
            self._note(token[0][0], 0)

    def _counted(self, token: Any, _result: Any) -> None:
        """Note a number that an answer has not changed: clients come and give up in a hang, too."""
        # A request that streams its input may wait for more of that for as long as it likes.
        states = token[0][0].request_states.values()
        self._streaming = sum(getattr(one, "streaming_input", False) for one in states)
        self._note(token[0][0], 0 if self._phase is None else self._phase[1][1])

    def _note(self, processor: Any, since: int) -> None:
        waiting = max(0, len(processor.request_states) - self._streaming)
        if waiting:
            slot = self._slot or self._open()
            self._phase = None if slot is None else (slot, slot.begin("", waiting, since))
        elif self._phase is not None:
            leave(self._phase)
            self._phase = None

    def _open(self) -> Slot | None:
        tracer = session.current()
        if tracer is None:
            return None
        session.describe(role=FRONTEND)
        self._slot = tracer.activity(REQUESTS)
        return self._slot

    def _forget(self) -> None:
        self._slot, self._phase = None, None


def _asked(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[str | None, int]:
    """Return the method that a client asks for, or else the type of its request, if it is known."""
    kind, request = args[1:3] if len(args) > 2 else (None, ())
    name = str(getattr(kind, "name", "a request")).lower()
    return str(request[2]) if name == "utility" else name, 0


def _unfinished(scheduler: Any) -> int:
    """Return how many requests could be scheduled; of a paused scheduler none."""
    return int(scheduler.get_num_unfinished_requests())


def _described(scheduler: Any) -> str:
    """Return the numbers of a scheduler that admits nobody."""
    waiting = [*_queue(scheduler, "waiting"), *_queue(scheduler, "skipped_waiting")]
    waiting += _queue(scheduler, "kv_holding_waiting")
    states = Counter(_BLOCKED.get(getattr(one.status, "name", ""), "") for one in waiting)
    blocked = "".join(f", {count} {why}" for why, count in sorted(states.items()) if why)
    text = f"{len(scheduler.running)} running, {len(waiting)} waiting{blocked}"
    pool = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    if pool is not None:
        text += f", {pool.get_num_free_blocks()} of {pool.num_gpu_blocks} KV blocks free"
    return text


def _queue(scheduler: Any, name: str) -> list[Any]:
    queue: Iterable[Any] = getattr(scheduler, name, None) or ()
    return list(islice(queue, _MOST_COUNTED))
