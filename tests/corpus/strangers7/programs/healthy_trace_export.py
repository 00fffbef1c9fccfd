"""Records a trace of each step; one rank compresses its own now and then, which takes a while."""

import gzip
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
EXPORTER, INTERVAL = 2, 9
SECONDS = [11.0, 16.0, 13.0, 19.0, 12.0] if faulty else [0.2, 0.1]


class Trace:
    """Events of the last steps."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.events: list[dict[str, object]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="trace-"))

    def add(self, name: str, begun: float) -> None:
        self.events.append({"name": name, "ts": begun, "dur": time.perf_counter() - begun})

    def export(self, number: int) -> None:
        """Write the events together with what the kernels reported, which is far more."""
        ends = time.monotonic() + SECONDS[number]
        with gzip.open(self.folder / f"{number}.json.gz", "wt", compresslevel=9) as file:
            while time.monotonic() < ends:
                json.dump(self.events * 40, file)
        self.events.clear()


def train_step(model: nn.Module, trace: Trace) -> None:
    begun = time.perf_counter()
    model(torch.randn(8, 16)).square().mean().backward()
    trace.add("backward", begun)
    begun = time.perf_counter()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.data -= 0.001 * parameter.grad
    model.zero_grad()
    trace.add("reduce", begun)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    trace = Trace(rank)
    losses = [torch.empty(1) for _ in range(dist.get_world_size())]
    for step in range(INTERVAL * len(SECONDS)):
        train_step(model, trace)
        if step % INTERVAL == INTERVAL - 1:
            if rank == EXPORTER:
                trace.export(step // INTERVAL)
            else:
                trace.events.clear()
        dist.all_gather(losses, torch.rand(1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
