"""What the ranks of benchmarks/gpu/small_all_reduces.py do."""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from benchmarks.gpu.switching import PluginSwitch

__all__ = ["ON_GPUS", "RANKS", "SIZES", "WAYS", "Times", "measure", "synchronize"]

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 64 << 10)
"""Bytes."""
ON_GPUS = torch.cuda.device_count() >= 2
RANKS = min(4, torch.cuda.device_count()) if ON_GPUS else 2

WAYS: dict[str, tuple[bool, bool]] = {
    "off": (False, False),
    "again": (False, False),
    "plugin": (False, True),
    "on": (True, True),
}
"""Whether probes record, and whether NCCL reports calls to its profiler plugin. What differs
between the first two is what the way of measuring makes up by itself."""

Times = dict[str, list[float]]
"""Nanoseconds a call of each round, by way."""


def measure(rank: int, rounds: int, count: int) -> dict[str, dict[str, Times]]:
    """Time the loops in one process.

    Args:
        rank: Global rank; all switch at the same calls.
        rounds: Of each size and way.
        count: Calls a round.

    Returns:
        By ``library bytes``, ``clock`` and ``host``.

    Raises:
        RuntimeError: Not exactly the calls that were to be recorded were.
    """
    from ncclscope.tracing import session
    from ncclscope_patches import registry

    switch = PluginSwitch()
    ways = [way for way in WAYS if way != "plugin" or switch.library is not None]
    device = torch.device("cuda", torch.cuda.current_device()) if ON_GPUS else torch.device("cpu")
    reducing = list(libraries(device))
    patches = registry.active()  # a library is patched when it is imported, and not before
    tracer = session.current()
    assert tracer is not None, "nothing is traced here"
    found = {}
    for library, reduce in reducing:
        for size in SIZES:
            tensor = torch.ones(size // 4, device=device)
            taken: dict[str, Times] = {"clock": {}, "host": {}}
            loop(reduce, tensor, count)  # warms up, and creates the communicator
            for number in range(rounds):
                # Each way comes after each other one equally often.
                for way in random.Random(number).sample(ways, len(ways)):
                    probes, plugin = WAYS[way]
                    switch.use(patches, probes=probes, plugin=plugin)
                    before = tracer.ring.position
                    host, clock = loop(reduce, tensor, count)
                    recorded = tracer.ring.position - before
                    if recorded != count * (probes or plugin):
                        raise RuntimeError(f"{library} {way}: {recorded} of {count} calls recorded")
                    taken["host"].setdefault(way, []).append(host)
                    taken["clock"].setdefault(way, []).append(clock)
            found[f"{library} {size}"] = taken
    return found


def libraries(device: torch.device) -> Iterator[tuple[str, Callable[[torch.Tensor], object]]]:
    """Yield what to measure."""
    yield "torch.distributed", dist.all_reduce
    if ON_GPUS and importlib.util.find_spec("vllm"):
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator

        yield "pynccl", PyNcclCommunicator(dist.new_group(backend="gloo"), device).all_reduce


def loop(
    reduce: Callable[[torch.Tensor], object], tensor: torch.Tensor, count: int
) -> tuple[float, float]:
    """Return nanoseconds a call, of the host and until all have ended."""
    synchronize()
    began = time.perf_counter_ns()
    for _ in range(count):
        reduce(tensor)
    posted = time.perf_counter_ns()
    synchronize()
    return (posted - began) / count, (time.perf_counter_ns() - began) / count


def synchronize() -> None:
    """Wait for the device."""
    if ON_GPUS:
        torch.cuda.synchronize()
