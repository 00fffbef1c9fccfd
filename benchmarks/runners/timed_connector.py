"""NIXL's connector with a clock around each hook of the probe, loaded by the benchmark's servers.

Each process appends its sums to a file after a step: a line of JSON with the seconds in hooks, the
number of their calls, the seconds in steps of the engine or worker, and the number of steps.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ncclscope_patches.vllm import nixl, transfers

DIRECTORY = "NCCLSCOPE_BENCH_TRANSFERS"
"""Variable that names the directory of these files."""
HOOKS: dict[ModuleType, tuple[str, ...]] = {
    transfers: (
        "_arriving",
        "_request",
        "_matched",
        "_allocated",
        "_reported",
        "_finished",
        "_loading",
        "_self",
        "_worker_results",
    ),
    nixl: ("_arguments", "_reading", "_handshake", "_failure", "_extended", "_expired"),
}
EVERY_SECONDS = 0.2

_spent = {"hooks": 0.0, "calls": 0, "steps": 0.0, "count": 0}
_written = 0.0


def _clocked(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def clocked(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return hook(*args)
        finally:
            _spent["hooks"] += time.perf_counter() - began
            _spent["calls"] += 1

    return clocked


def _time_steps(owner: type, name: str) -> None:
    step = getattr(owner, name)

    @functools.wraps(step)
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return step(*args, **kwargs)
        finally:
            now = time.perf_counter()
            _spent["steps"] += now - began
            _spent["count"] += 1
            _write(owner.__name__, now)

    setattr(owner, name, timed)


def _write(role: str, now: float) -> None:
    global _written
    if now - _written < EVERY_SECONDS:
        return
    _written = now
    with Path(os.environ[DIRECTORY], f"{role}-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(_spent) + "\n")


# The probe takes its hooks from these modules when vLLM's are imported or create a connector.
for _module, _names in HOOKS.items():
    for _name in _names:
        setattr(_module, _name, _clocked(getattr(_module, _name)))

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlPullConnector  # noqa: E402
from vllm.v1.engine.core import EngineCore  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

_time_steps(EngineCore, "step")
_time_steps(Worker, "execute_model")


class NixlTimedConnector(NixlPullConnector):
    """NIXL's connector under a name of its own, as the probe wraps the class that vLLM creates."""
