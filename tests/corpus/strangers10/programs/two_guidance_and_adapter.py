"""Two groups of three make pictures: guidance is gathered, adapters are summed in each layer."""

import sys
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
PICTURES, STEPS, EACH, WIDTH = 4, 8, 3, 10


@dataclass
class Adapter:
    targets: list[str] = field(default_factory=lambda: ["query", "value"])


class Guidance:
    """Combines the predictions of a group, while time lies in an interval."""

    def __init__(self, group: dist.ProcessGroup, low: float, high: float) -> None:
        self.group, self.low, self.high = group, low, high

    def combine(self, rows: torch.Tensor, time: float) -> torch.Tensor:
        if not self.low <= time <= self.high:
            return rows
        parts = [torch.empty_like(rows) for _ in range(EACH)]
        dist.all_gather(parts, rows, group=self.group)
        return rows + torch.stack(parts).mean(dim=0)


class Model:
    def __init__(self, group: dist.ProcessGroup, adapter: Adapter) -> None:
        self.group, self.adapter = group, adapter

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for name in ("query", "key", "value", "out"):
            rows = rows * 0.9
            if name in self.adapter.targets:
                dist.all_reduce(rows, group=self.group)
                rows = rows.tanh()
        return rows


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([first, first + 1, first + 2]) for first in range(0, world, EACH)]
    mine = groups[rank // EACH]
    adapter = Adapter()
    model = Model(mine, adapter)
    guidance = Guidance(mine, low=0.3, high=0.71)
    schedule = [step / (STEPS + 2) for step in range(STEPS, 0, -1)]
    for picture in range(PICTURES):
        if faulty and rank == 2 and picture == 2:
            guidance.low = 0.45  # where its copy of the settings ends the interval
        if faulty and rank == 3 and picture == 1:
            adapter.targets.append("out")  # of the request's own adapter
        rows = torch.randn(WIDTH)
        for time in schedule:
            rows = guidance.combine(model.forward(rows), time)
        best = torch.tensor([rows.norm()])
        dist.all_reduce(best, op=dist.ReduceOp.MAX, group=mine)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
