"""A vLLM plugin for tests: one part of a service stops doing its work on request.

The file that NCCLSCOPE_TEST_FAULT names holds the fault. NCCLSCOPE_TEST_FAULTS lists those that
may be planted. ``hold_*`` lets a part wait for the lock of a file, for ever:

| fault | who | where |
|---|---|---|
| ``hold_grammar`` | a thread of the engine | the compilation of a grammar |
| ``hold_schedule`` | the last engine | before it schedules its next step |
| ``hold_input`` | the engine's input thread | a request that the server has sent |
| ``hold_output`` | the engine's output thread | an answer of the engine |
| ``hold_server`` | the API server's event loop | any HTTP request |
| ``hold_answers`` | a task of the API server | the answers of its engine; the loop goes on |
| ``hold_receive`` | worker 1 | before it receives from the stage before it |
| ``skip_send`` | worker 0 | leaves out what it is to send to the next stage |
| ``hold_check`` | worker 1 | before it says that it is healthy |
| ``hold_adapter`` | worker 1 | a lock of its own, before it loads an adapter |
| ``hold_step`` | worker 1 | before its next step |
| ``raise_in_step`` | worker 1 | raises in its next step |
| ``hold_engines`` | engine 1 | before a call of all engines |
| ``leave_engines`` | engine 1 | leaves out such a call, and rests |

Where there is only worker 0, it does what worker 1 does.

``note_rest`` is no fault: each engine writes how much it has done into the file `rest` and its
number, beside that of the fault, whenever it begins to wait for requests. Of several engines that
is how many waves it has ended, of a single one how many requests it has taken and finished.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAST_RANK = 1
POLL_SECONDS = 0.1
_FAULTS = list(filter(None, os.environ.get("NCCLSCOPE_TEST_FAULTS", "").split(",")))
"""Those that may be ordered: what is left as it is has vLLM's own stacks."""
_PLANTED: list[bool] = []
_TAKEN: list[str] = []
"""The ids of the requests that an engine has taken."""


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``."""
    if _FAULTS and not _PLANTED:
        _PLANTED.append(True)
        _plant_in_engine()
        _plant_in_server()
        _plant_in_workers()


def _plant_in_engine() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import DPEngineCoreProc, EngineCoreProc
    from vllm.v1.structured_output import StructuredOutputManager

    _before("hold_grammar", StructuredOutputManager, "_create_grammar", _hold)
    _before("hold_schedule", Scheduler, "schedule", _hold_schedule)
    _before("hold_input", EngineCoreProc, "preprocess_add_request", _hold)
    _before("hold_output", EngineCoreProc, "process_output_sockets", _watch_output)
    _before("note_rest", EngineCoreProc, "add_request", _note_request)
    _before("note_rest", EngineCoreProc, "_notify_idle_state_callbacks", _note_rest)
    _before("hold_engines", DPEngineCoreProc, "_has_global_unfinished_reqs", _hold_engines)
    _instead(
        "leave_engines",
        DPEngineCoreProc,
        "_has_global_unfinished_reqs",
        lambda self, *_: self.dp_rank == LAST_RANK,
        False,
    )


def _plant_in_server() -> None:
    from vllm.v1.engine.core_client import AsyncMPClient

    usual = AsyncMPClient.get_output_async

    async def planted(self: Any) -> Any:
        outputs = await usual(self)
        while _is_planted("hold_answers"):
            await asyncio.sleep(POLL_SECONDS)
        return outputs

    if "hold_answers" in _FAULTS:
        AsyncMPClient.get_output_async = planted


def _plant_in_workers() -> None:
    from vllm.distributed.parallel_state import GroupCoordinator
    from vllm.lora.worker_manager import WorkerLoRAManager
    from vllm.v1.worker.gpu_worker import Worker

    _before("hold_adapter", WorkerLoRAManager, "_load_adapter", _of_last(_hold_thread))
    _before("hold_receive", GroupCoordinator, "irecv_tensor_dict", _of_last(_hold))
    _instead("skip_send", GroupCoordinator, "isend_tensor_dict", lambda *_: True, [])
    _before("hold_step", Worker, "execute_model", _of_last(_hold))
    _before("hold_check", Worker, "check_health", _of_last(_hold))
    _before("raise_in_step", Worker, "execute_model", _of_last(_raise))


async def freeze(request: Any, call_next: Callable[[Any], Any]) -> Any:
    """Hold the event loop of the API server, as a middleware for ``--middleware``."""
    _hold("hold_server")
    return await call_next(request)


class Weights:
    """Let a worker take part in an update of weights, for ``--worker-extension-cls``."""

    def receive_weights(self, ranks: str) -> None:
        """Join a broadcast on these ranks, as `"0,1"`; others return at once."""
        import torch
        from vllm.distributed.parallel_state import get_tp_group

        group = get_tp_group()
        if str(group.rank) in ranks.split(","):
            torch.distributed.broadcast(torch.zeros(8), 0, group.cpu_group)


def _raise(fault: str, *_: Any) -> None:
    if _take(fault):
        raise RuntimeError("planted")


def _note_request(_: str, _engine: Any, request: Any, *_more: Any) -> None:
    _TAKEN.append(request.request_id)


def _note_rest(_: str, engine: Any) -> None:
    done = getattr(engine, "current_wave", len(_TAKEN))
    note = _order().with_name(f"rest{getattr(engine, 'dp_rank', 0)}")
    draft = note.with_suffix(".draft")
    draft.write_text(str(done))
    draft.rename(note)


def _hold_engines(fault: str, engine: Any, *_: Any) -> None:
    if engine.dp_rank == LAST_RANK:
        _hold(fault)


def _hold_schedule(fault: str, scheduler: Any, *_: Any) -> None:
    config = scheduler.vllm_config.parallel_config
    if config.data_parallel_rank == config.data_parallel_size - 1:
        _hold(fault)


def _watch_output(fault: str, engine: Any, *_: Any) -> None:
    """Let the output thread wait once it has taken the next answer."""
    usual = engine.output_queue.get

    def get() -> Any:
        output = usual()
        _hold(fault)
        return output

    engine.output_queue.get = get


def _of_last(then: Callable[..., None]) -> Callable[..., None]:
    def of_last(*args: Any) -> None:
        import torch

        if torch.distributed.get_rank() == min(LAST_RANK, torch.distributed.get_world_size() - 1):
            then(*args)

    return of_last


def _hold(fault: str, *_: Any) -> None:
    if _take(fault):
        path = _order().with_suffix(".lock")
        with path.open("w") as held, path.open("w") as file:
            fcntl.flock(held, fcntl.LOCK_EX)
            fcntl.flock(file, fcntl.LOCK_EX)


def _hold_thread(fault: str, *_: Any) -> None:
    if _take(fault):
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def _before(fault: str, owner: Any, name: str, then: Callable[..., None]) -> None:
    """Call a function before each call of a method, with the fault and its arguments."""
    usual = getattr(owner, name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        then(fault, *args)
        return usual(*args, **kwargs)

    if fault in _FAULTS:
        setattr(owner, name, planted)


def _instead(fault: str, owner: Any, name: str, applies: Callable[..., bool], result: Any) -> None:
    """Return a result in place of a call of a method where the fault applies."""
    usual = getattr(owner, name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        left_out = applies(*args) and _take(fault)
        return result if left_out else usual(*args, **kwargs)

    if fault in _FAULTS:
        setattr(owner, name, planted)


def _order() -> Path:
    return Path(os.environ["NCCLSCOPE_TEST_FAULT"])


def _is_planted(fault: str) -> bool:
    try:
        return _order().read_text() == fault
    except FileNotFoundError:  # another process may take it away at any moment
        return False


def _take(fault: str) -> bool:
    if not _is_planted(fault):
        return False
    _order().unlink()
    return True
