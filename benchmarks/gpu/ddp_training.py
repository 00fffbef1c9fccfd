"""What the ranks of benchmarks/gpu/ddp_step.py do."""

from __future__ import annotations

import random
import time

import torch

from benchmarks.gpu.all_reduce_programs import ON_GPUS, WAYS, synchronize
from benchmarks.gpu.switching import PluginSwitch

__all__ = ["STRETCH", "Steps", "train"]

LAYERS = 8
STRETCH = 5
"""Steps that are timed together."""

Steps = dict[str, list[float]]
"""Nanoseconds a step of each round, by way."""


def train(rank: int, rounds: int, width: int, batch: int) -> tuple[Steps, dict[str, int]]:
    """Time steps in one process.

    Args:
        rank: Global rank; all switch at the same step.
        rounds: Of each way.
        width: Of each layer.
        batch: Rows of a batch.

    Returns:
        Nanoseconds a step, and how many calls a stretch recorded, by way.
    """
    from torch.nn.parallel import DistributedDataParallel

    from ncclscope.tracing import session
    from ncclscope_patches import registry

    switch = PluginSwitch()
    ways = [way for way in WAYS if way != "plugin" or switch.library is not None]
    device = torch.device("cuda", torch.cuda.current_device()) if ON_GPUS else torch.device("cpu")
    layers = [
        each for _ in range(LAYERS) for each in (torch.nn.Linear(width, width), torch.nn.ReLU())
    ]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.ones(batch, width, device=device)
    tracer = session.current()
    assert tracer is not None, "nothing is traced here"
    patches = registry.active()

    def stretch() -> float:
        synchronize()
        began = time.perf_counter_ns()
        for _ in range(STRETCH):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        synchronize()
        return (time.perf_counter_ns() - began) / STRETCH

    for _ in range(3):
        stretch()
    taken: Steps = {way: [] for way in ways}
    recorded: dict[str, int] = {}
    for number in range(rounds):
        for way in random.Random(number).sample(ways, len(ways)):
            probes, plugin = WAYS[way]
            switch.use(patches, probes=probes, plugin=plugin)
            before = tracer.ring.position
            taken[way].append(stretch())
            recorded[way] = tracer.ring.position - before
    return taken, recorded
