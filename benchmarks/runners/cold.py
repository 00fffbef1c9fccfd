"""What a probe costs with cold caches.

In a hot loop everything that a probe touches is in the processor's nearest cache. In a program
that computes between its calls nothing is, and each object that is read comes from far
away. Here all that is near is thrown out before each call, and single calls are timed.

``python -m benchmarks.runners.cold FOLDER`` measures five times, in less than two minutes, and
writes ``FOLDER/cold.txt``. It needs torch alone, and takes a GPU's tensors where there is a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
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
from ncclscope_patches.vllm.service import VllmEngineInput, VllmRequests, VllmScheduler
from ncclscope_patches.vllm.steps import VllmSteps

__all__ = ["Cost", "measure"]

_FAR = np.zeros(48 << 20, dtype=np.uint8)
_LINE = 64

Call = Callable[[], object]
Turn = Callable[[bool], Call]
"""Return a call that is recorded, or one that is not and is otherwise equal."""


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


def measure(*, rounds: int, repeats: int = 1) -> list[dict[str, Cost]]:
    """Measure each call and the same one that is not recorded in turns.

    Args:
        rounds: Calls of each, on and off, hot and cold.
        repeats: How often all of them are measured. ``NCCLSCOPE_DIR`` names a place for the ring.
    """
    with ExitStack() as stack:
        torch.set_num_threads(1)
        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        stack.callback(dist.destroy_process_group)
        turns = _turns(stack)
        found = [
            {name: _compare(turn, rounds) for name, turn in turns.items()} for _ in range(repeats)
        ]
        tracer = session.current()
        assert tracer is not None
        assert tracer.ring.position > rounds, "nothing was recorded"
        return found


def _compare(turn: Turn, rounds: int) -> Cost:
    taken: dict[tuple[bool, bool], list[int]] = {}
    gc.collect()
    gc.disable()
    try:
        for cold in (False, True):
            for number in range(2 * rounds + 20):
                is_recorded = bool(number % 2)
                call = turn(is_recorded)
                if cold:
                    _FAR[::_LINE] += 1
                else:
                    call()
                began = time.perf_counter_ns()
                call()
                passed = time.perf_counter_ns() - began
                if number >= 20:
                    taken.setdefault((cold, is_recorded), []).append(passed)
    finally:
        gc.enable()
        turn(True)
    middle = {key: statistics.median(values) for key, values in taken.items()}
    return Cost(
        middle[False, True] - middle[False, False],
        middle[True, True] - middle[True, False],
        middle[True, False],
    )


def _turns(stack: ExitStack) -> Mapping[str, Turn]:
    """Return calls that pass through a probe and do nothing else."""
    tensor = torch.zeros(15, 2, device="cuda" if torch.cuda.is_available() else "cpu")
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
    traced, plain = pynccl_module(), pynccl_module()
    for module in (traced, plain):
        _make_real(module.PyNcclCommunicator, tensor.device)
    direct.install(traced)
    stack.callback(direct.revert)
    sizes = [15, 14]

    def gather(communicator: Any) -> None:
        communicator.all_gather(tensor, tensor)

    def gather_uneven(communicator: Any) -> None:
        communicator.all_gatherv(tensor, tensor, sizes=sizes)

    def gather_three(communicator: Any) -> None:
        communicator.group_start()
        for _ in range(3):
            communicator.all_gather(tensor, tensor)
        communicator.group_end()

    communicators = plain.PyNcclCommunicator(), traced.PyNcclCommunicator()

    def pynccl(call: Callable[[Any], None]) -> Turn:
        calls = tuple(partial(call, communicator) for communicator in communicators)
        return lambda is_recorded: calls[is_recorded]

    queues, queue = _stand_in(stack, VllmQueues(), "MessageQueue", "enqueue", "dequeue")
    steps, worker = _stand_in(stack, VllmSteps(), "Worker", "execute_model", "sample_tokens")
    inputs, engine = _stand_in(stack, VllmEngineInput(), "EngineCoreProc", "_process_input_queue")
    schedules, scheduler = _stand_in(
        stack, VllmScheduler(), "Scheduler", "schedule", "set_pause_state"
    )
    answers, answered = _stand_in(
        stack, VllmRequests(), "OutputProcessor", "add_request", "process_outputs", "abort_requests"
    )
    output = SimpleNamespace(total_num_scheduled_tokens=17)
    type(scheduler).planned, type(answered).request_states = output, dict.fromkeys(range(32))
    graphs, graph = _stand_in(stack, CudaGraphProbe(), "CUDAGraph", "replay")
    comms = [tracer.communicator(f"cold {n}", f"tp:{n}", [0, 1], "nccl") for n in range(3)]
    graphs._graphs[id(graph)] = captured(tracer, comms, 62)
    asked = ("execute_model", (), {}, None)
    return {
        "c10d, all_reduce": _switched(c10d, reduce),
        "pynccl, an all_gather": pynccl(gather),
        "pynccl, an all_gather, 40 frames deep": pynccl(partial(_deep, 40, gather)),
        "pynccl, an all_gather of uneven parts": pynccl(gather_uneven),
        "pynccl, a group of three all_gathers": pynccl(gather_three),
        "a replay, 62 calls on 3 communicators": _switched(graphs, graph.replay),
        "vLLM's enqueue": _switched(queues, lambda: queue.enqueue(asked)),
        "vLLM's dequeue": _switched(queues, lambda: queue.dequeue(indefinite=True)),
        "vLLM's execute_model": _switched(steps, lambda: worker.execute_model(output)),
        "vLLM's sample_tokens": _switched(steps, lambda: worker.sample_tokens(None)),
        "vLLM's _process_input_queue": _switched(inputs, lambda: engine._process_input_queue()),
        "vLLM's schedule": _switched(schedules, lambda: scheduler.schedule()),
        "vLLM's process_outputs": _switched(answers, lambda: answered.process_outputs([output])),
    }


def _make_real(cls: Any, device: torch.device) -> None:
    """Let gathers do what vLLM's do on the host, up to a call through ctypes that does nothing."""
    nccl = ctypes.CDLL(None).getppid
    nccl.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    codes = {torch.float32: 7}

    def all_gather(self: Any, output_tensor: Any, input_tensor: Any, stream: Any = None) -> None:
        if self.disabled:
            return
        assert input_tensor.device == self.device
        nccl(
            ctypes.c_void_p(input_tensor.data_ptr()),
            ctypes.c_void_p(output_tensor.data_ptr()),
            input_tensor.numel(),
            codes[input_tensor.dtype],
        )

    def all_gatherv(
        self: Any, output_tensor: Any, input_tensor: Any, sizes: list[int], stream: Any = None
    ) -> None:
        assert output_tensor.shape[0] == self.rows
        all_gather(self, output_tensor, input_tensor)

    cls.device, cls.rows = device, 15
    cls.all_gather, cls.all_gatherv = all_gather, all_gatherv


def _switched(probe: Any, call: Call) -> Turn:
    def turn(is_recorded: bool) -> Call:
        probe.active = is_recorded
        return call

    return turn


def _deep(depth: int, call: Callable[[Any], None], communicator: Any) -> None:
    """Call from further down the stack."""
    if depth:
        _deep(depth - 1, call, communicator)
    else:
        call(communicator)


def _stand_in(stack: ExitStack, probe: Any, name: str, *methods: str) -> tuple[Any, Any]:
    """Install a probe on a class whose methods do nothing."""
    module: Any = ModuleType("benchmarks.runners.stand_in")

    def nothing(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.planned

    cls = type(name, (), {**dict.fromkeys(methods, nothing), "planned": None})
    setattr(module, name, cls)
    probe.active = True
    probe.install(module)
    stack.callback(probe.revert)
    return probe, cls()


def main() -> None:
    """Measure, and write the medians with the least and the most of the repeats."""
    parser = argparse.ArgumentParser(prog="benchmarks.runners.cold", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ncclscope-bench-") as rings:
        os.environ["NCCLSCOPE_DIR"] = rings
        taken = measure(rounds=arguments.rounds, repeats=arguments.repeats)
    has_gpu = torch.cuda.is_available()
    lines = [
        f"Python {sys.version.split()[0]}, torch {torch.__version__}, GPU: {has_gpu}",
        f"{'a probe adds, ns':40} {'hot':>26} {'cold':>26} {'the call, cold':>16}",
    ]
    for name in taken[0]:
        costs = [one[name] for one in taken]
        hot, cold = (_spread([getattr(cost, way) for cost in costs]) for way in ("hot", "cold"))
        call = statistics.median(cost.call for cost in costs)
        lines.append(f"{name:40} {hot:>26} {cold:>26} {call:16,.0f}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join([*lines, ""])
    (arguments.folder / "cold.txt").write_text(text)
    print(text, end="")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


if __name__ == "__main__":
    main()
