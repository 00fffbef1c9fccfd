"""Hang a job of three gloo ranks, and let a watchdog in rank 0 explain it.

    ncclscope run --no-explain -- python examples/watchdogs/run.py sglang

The watchdogs are stand-ins with the signatures of the real ones, since the engines need GPUs. Ray
Train's callback is the real class where Ray is installed.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import hooks
import torch
import torch.distributed as dist

RANKS, SLEEPS, SILENT_SECONDS = 3, 1, 11.0


class SglangWatchdog:
    """Stands in for SGLang's: `dump_info` is called once nothing has moved for too long."""

    def __init__(self, watchdog_timeout: float, dump_info: Callable[[], str]) -> None:
        self.timer = threading.Timer(watchdog_timeout, lambda: print(dump_info(), flush=True))


class HangDetector:
    """Stands in for TensorRT-LLM's."""

    def __init__(self, timeout: float, on_detected: Callable[[], None]) -> None:
        self.timer = threading.Timer(timeout, on_detected)


class Diagnostician:
    """Stands in for DLRover's."""


class DiagnosisObservation:
    """Stands in for DLRover's."""

    def __init__(self, observation: str) -> None:
        self.observation = observation


def ray_callback() -> type[Any]:
    """Return Ray Train's base class, or a stand-in."""
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    try:
        from ray.train import UserCallback
    except ImportError:
        return object
    return UserCallback


def watchdog(name: str) -> threading.Timer:
    """Return the timer that fires in rank 0."""
    if name == "sglang":
        return SglangWatchdog(SILENT_SECONDS, dump_info=hooks.sglang).timer
    if name == "tensorrt_llm":
        on_detected = hooks.tensorrt_llm(lambda: print("the executor shuts down", flush=True))
        return HangDetector(SILENT_SECONDS, on_detected=on_detected).timer
    if name == "ray_train":
        callback = hooks.ray_train(ray_callback())
        return threading.Timer(SILENT_SECONDS, lambda: callback.after_exception(None, {0: None}))
    diagnostician = hooks.dlrover(Diagnostician, DiagnosisObservation)
    return threading.Timer(
        SILENT_SECONDS, lambda: print(diagnostician.observe().observation, flush=True)
    )


def work(rank: int, name: str, store: str) -> None:
    """Make a few calls; rank 1 then leaves one out and sleeps."""
    timer = watchdog(name) if rank == 0 else None
    limit = datetime.timedelta(seconds=SILENT_SECONDS + 20)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=limit
    )
    tensor = torch.ones(4)
    for _ in range(5):
        dist.all_reduce(tensor)
    if timer is not None:
        timer.start()
        threading.Thread(target=lambda: (timer.join(), os._exit(0))).start()
    if rank == SLEEPS:
        threading.Event().wait()
    dist.all_reduce(tensor)


def main() -> None:
    """Run the job until the watchdog has spoken."""
    names = ("sglang", "tensorrt_llm", "ray_train", "dlrover")
    if len(sys.argv) != 2 or sys.argv[1] not in names:
        sys.exit(f"usage: run.py {'|'.join(names)}")
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        ranks = [
            fork.Process(target=work, args=(rank, sys.argv[1], f"{folder}/store"))
            for rank in range(RANKS)
        ]
        for rank in ranks:
            rank.start()
        ranks[0].join()
        for rank in ranks[1:]:
            rank.kill()
            rank.join()


if __name__ == "__main__":
    main()
