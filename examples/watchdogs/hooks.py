"""What each watchdog calls when it fires. Copy the one that you need.

`ncclscope.explain()` returns the verdict on the job of this process as text and as a document. It
never raises, and takes SECONDS at most.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import ncclscope

SECONDS = float(os.environ.get("EXPLAIN_SECONDS", "3"))


def sglang() -> str:
    """Return a text for SGLang: ``Watchdog.create(..., dump_info=sglang)``, which logs it."""
    return ncclscope.explain(seconds=SECONDS).text


def tensorrt_llm(shut_down: Callable[[], None]) -> Callable[[], None]:
    """Return ``on_detected`` for TensorRT-LLM: ``HangDetector(timeout, on_detected=...)``.

    Args:
        shut_down: What the executor does otherwise.
    """

    def on_detected() -> None:
        print(ncclscope.explain(seconds=SECONDS).text, flush=True)
        shut_down()

    return on_detected


def ray_train(callback: type[Any]) -> Any:
    """Return a callback for Ray Train: ``RunConfig(callbacks=[ray_train(UserCallback)])``.

    It runs in the controller, and reads the rings of its own host; for workers on other hosts use
    ``ncclscope diagnose --ray``.

    Args:
        callback: ``ray.train.UserCallback``.
    """

    class Explain(callback):
        def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Any]) -> None:
            print(f"ranks {sorted(worker_exceptions)} failed", flush=True)
            print(ncclscope.explain(seconds=SECONDS).text, flush=True)

    return Explain()


def dlrover(diagnostician: type[Any], observation: type[Any]) -> Any:
    """Return a diagnostician for DLRover's agent, which observes at an interval.

    Args:
        diagnostician: ``dlrover.python.diagnosis.common.diagnostician.Diagnostician``.
        observation: ``DiagnosisObservation`` of the same module.
    """

    class Explain(diagnostician):
        def observe(self, **_: Any) -> Any:
            found = ncclscope.explain(seconds=SECONDS)
            hung = found.document.get("status") in ("diverged", "hung")
            return observation(found.text) if hung else None

    return Explain()
