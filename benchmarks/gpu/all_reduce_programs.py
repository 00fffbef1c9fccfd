"""What the ranks of benchmarks/gpu/small_all_reduces.py do."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

__all__ = ["ON_GPUS", "SIZES", "Times", "measure"]

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 64 << 10)
"""Bytes."""
ON_GPUS = torch.cuda.device_count() >= 2

Times = dict[str, list[float]]
"""Nanoseconds a call of each round, ``off`` and ``on``."""


def measure(rank: int, rounds: int, count: int) -> dict[str, dict[str, Times]]:
    """Time the loops in one process.

    Args:
        rank: Global rank; all switch at the same calls.
        rounds: Of each size, on and off.
        count: Calls a round.

    Returns:
        By ``library bytes``, ``clock`` and ``host``.

    Raises:
        RuntimeError: Not exactly the calls that were to be recorded were.
    """
    from ncclscope.tracing import session
    from ncclscope_patches import registry

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
            for number in range(2 * rounds + 2):
                way = ("off", "on")[number % 2]
                for patch in patches:
                    patch.active = way == "on"
                before = tracer.ring.position
                host, clock = loop(reduce, tensor, count)
                if number > 1:  # the first of each warms up
                    if (recorded := tracer.ring.position - before) != count * (number % 2):
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
