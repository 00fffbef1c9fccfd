"""What a probe costs with cold caches.

In a hot loop everything that a probe touches is in the processor's nearest cache. In a program
that computes between its calls nothing is, and each object that is read comes from far
away. Here all that is near is thrown out before each call, and single calls are timed.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.runners.records import StandInProbe, pynccl_module
from benchmarks.runners.replays import captured
from ncclscope.tracing import session
from ncclscope_patches.probes.c10d import C10dProbe
from ncclscope_patches.probes.cuda_graphs import CudaGraphProbe
from ncclscope_patches.vllm.queues import VllmQueues
from ncclscope_patches.vllm.steps import VllmSteps

__all__ = ["Cost", "measure"]

_FAR = np.zeros(48 << 20, dtype=np.uint8)
_LINE = 64

Call = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """Nanoseconds that a probe adds to one call, medians.

    Attributes:
        hot: With everything near.
        cold: With nothing near.
        call: What the call takes without it, with nothing near.
    """

    hot: float
    cold: float
    call: float


def measure(directory: Path, *, rounds: int) -> dict[str, Cost]:
    """Measure each probe on and off in turns.

    Args:
        directory: Where ``NCCLSCOPE_DIR`` points to.
        rounds: Calls of each, on and off, hot and cold.
    """
    with ExitStack() as stack:
        torch.set_num_threads(1)
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        stack.callback(dist.destroy_process_group)
        found = {}
        for name, (probe, call) in _probed(stack).items():
            found[name] = _compare(probe, call, rounds)
        tracer = session.current()
        assert tracer is not None
        assert tracer.ring.position > rounds, "nothing was recorded"
        return found


def _compare(probe: Any, call: Call, rounds: int) -> Cost:
    taken: dict[tuple[bool, bool], list[int]] = {}
    gc.collect()
    gc.disable()
    try:
        for cold in (False, True):
            for number in range(2 * rounds + 20):
                probe.active = bool(number % 2)
                if cold:
                    _FAR[::_LINE] += 1
                elif number % 2 == 0:
                    call()
                began = time.perf_counter_ns()
                call()
                passed = time.perf_counter_ns() - began
                if number >= 20:
                    taken.setdefault((cold, probe.active), []).append(passed)
    finally:
        gc.enable()
        probe.active = True
    middle = {key: statistics.median(values) for key, values in taken.items()}
    return Cost(
        middle[False, True] - middle[False, False],
        middle[True, True] - middle[True, False],
        middle[True, False],
    )


def _probed(stack: ExitStack) -> Mapping[str, tuple[Any, Call]]:
    """Return probes, and calls that pass through them and do nothing else."""
    tensor = torch.zeros(15, 2)
    c10d = C10dProbe()
    c10d.apply()
    stack.callback(c10d.revert)

    def reduce() -> None:
        dist.all_reduce(tensor)

    reduce()
    tracer = session.current()
    assert tracer is not None

    direct = StandInProbe()
    direct.active = True
    module = pynccl_module()
    direct.install(module)
    stack.callback(direct.revert)
    communicator = module.PyNcclCommunicator()

    def gather() -> None:
        communicator.group_start()
        for _ in range(3):
            communicator.all_gather(tensor, tensor)
        communicator.group_end()

    gather()
    queues, queue = _stand_in(stack, VllmQueues(), "MessageQueue", "enqueue", "dequeue")
    steps, worker = _stand_in(stack, VllmSteps(), "Worker", "execute_model", "sample_tokens")
    graphs, graph = _stand_in(stack, CudaGraphProbe(), "CUDAGraph", "replay")
    comms = [tracer.communicator(f"cold {n}", f"tp:{n}", [0, 1], "nccl") for n in range(3)]
    graphs._graphs[id(graph)] = captured(tracer, comms, 62)
    asked = ("execute_model", (), {}, None)
    output = SimpleNamespace(total_num_scheduled_tokens=17)
    return {
        "c10d, all_reduce": (c10d, reduce),
        "pynccl, a group of three all_gathers": (direct, gather),
        "a replay, 62 calls on 3 communicators": (graphs, graph.replay),
        "vLLM's enqueue": (queues, lambda: queue.enqueue(asked)),
        "vLLM's dequeue": (queues, lambda: queue.dequeue(indefinite=True)),
        "vLLM's execute_model": (steps, lambda: worker.execute_model(output)),
        "vLLM's sample_tokens": (steps, lambda: worker.sample_tokens(None)),
    }


def _stand_in(stack: ExitStack, probe: Any, name: str, *methods: str) -> tuple[Any, Any]:
    """Install a probe on a class whose methods do nothing."""
    module: Any = ModuleType("benchmarks.runners.stand_in")

    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    cls = type(name, (), dict.fromkeys(methods, nothing))
    setattr(module, name, cls)
    probe.active = True
    probe.install(module)
    stack.callback(probe.revert)
    return probe, cls()
