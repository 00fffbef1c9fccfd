"""What the ranks of tests/gpu/test_cuda_graphs.py do: collectives in CUDA graphs, and faults."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["DIVERGING", "LAYERS", "agree", "captured", "differ", "replay_cost"]

LAYERS = "grgrgrgr"
"""An all_gather and an all_reduce in turn."""
SWAPPED = "grgrrggr"
DIVERGING = 1
"""The rank that does something else."""
DEVICE = "cuda"


class Captured:
    """Collectives in graphs, with the tensors that they work on.

    Args:
        names: The collectives.
        rows: Of the tensors.
        pieces: Into how many graphs they are cut.
    """

    def __init__(self, names: str, rows: int, pieces: int = 1) -> None:
        self.tensors = tensors_of(rows)
        self.graphs = []
        size = len(names) // pieces
        for start in range(0, len(names), size):
            self.graphs.append(captured(partial(post, names[start : start + size], self.tensors)))

    def replay(self) -> None:
        """Replay all pieces."""
        for graph in self.graphs:
            graph.replay()


def captured(step: Callable[[], object]) -> Any:
    """Return a graph of what a step posts."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    # Others may query events meanwhile, as the watchdog of NCCL's groups does.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return graph


def tensors_of(rows: int) -> dict[str, Any]:
    """Return what an all_gather takes and gives, and what an all_reduce works on."""
    ranks = dist.get_world_size()
    return {
        "in": torch.full((rows,), float(dist.get_rank() + 1), device=DEVICE),
        "out": torch.zeros(ranks * rows, device=DEVICE),
        "sum": torch.ones(rows, device=DEVICE),
    }


def post(names: str, tensors: dict[str, Any]) -> None:
    """Post some collectives."""
    # The older name warns where there is the newer one.
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    for name in names:
        if name == "g":
            gather(tensors["out"], tensors["in"])
        else:
            dist.all_reduce(tensors["sum"])


def agree(rank: int, pieces: list[int], replays: int) -> tuple[float, float]:
    """Replay the same collectives on all ranks, cut into graphs as each rank likes.

    Returns:
        Sums of what was gathered and of what was reduced.
    """
    post(LAYERS, tensors_of(8))
    small, large = Captured(LAYERS, 8, pieces[rank]), Captured(LAYERS, 16, pieces[rank])
    eager = tensors_of(4)
    for number in range(replays):
        (small, large)[number % 2].replay()
        small.tensors["sum"].fill_(1.0)
        large.tensors["sum"].fill_(1.0)
        post("g", eager)
    small.replay()
    torch.cuda.synchronize()
    return small.tensors["out"].sum().item(), small.tensors["sum"].sum().item()


def differ(rank: int, fault: str) -> None:
    """Make one rank differ from the others."""
    post(LAYERS, tensors_of(8))
    good, other = Captured(LAYERS, 8), Captured(LAYERS, 16)
    odd = rank == DIVERGING
    swapped = Captured(SWAPPED if odd and fault == "swapped" else LAYERS, 8)
    for _ in range(5):
        good.replay()
    torch.cuda.synchronize()
    dist.barrier()
    if fault == "swapped":
        swapped.replay()
    elif fault == "other graph":
        (other if odd else good).replay()
    elif fault == "eager":
        post(LAYERS, good.tensors) if odd else good.replay()
    elif not odd:  # one is a replay behind
        good.replay()
    torch.cuda.synchronize()


def replay_cost(rank: int, calls: int, replays: int) -> dict[str, float]:
    """Measure how long the host is in ``replay()``, recorded and not.

    Returns:
        Median nanoseconds.
    """
    post(LAYERS, tensors_of(8))
    graph = Captured("r" * calls, 8)
    taken: dict[str, list[int]] = {"recorded": [], "not recorded": []}
    replay: Any = torch.cuda.CUDAGraph.replay
    ways = {"recorded": replay, "not recorded": replay.__wrapped__}
    for number in range(2 * replays):
        # In turns, so that what the host does besides meets both alike.
        name = ("recorded", "not recorded")[number % 2]
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        ways[name](graph.graphs[0])
        taken[name].append(time.perf_counter_ns() - began)
    return {name: statistics.median(times[replays // 10 :]) for name, times in taken.items()}
