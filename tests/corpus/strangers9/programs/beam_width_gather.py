"""Hypotheses of all ranks are gathered in a tensor of equal rows, as many as the widest has."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, LENGTH = 10, 8


class Beam:
    """Hypotheses of one rank, of which poor ones are dropped."""

    def __init__(self, rank: int, margin: float) -> None:
        self.rank, self.margin = rank, margin
        self.generator = torch.Generator().manual_seed(rank)

    def scores(self, step: int) -> torch.Tensor:
        scores = torch.linspace(0, 1, 6)
        return scores + 0.02 * torch.rand(6, generator=self.generator)

    def hypotheses(self, step: int) -> torch.Tensor:
        scores = self.scores(step)
        kept = int((scores > scores.max() - self.margin).sum())
        return torch.full((kept, LENGTH), float(self.rank))


class Gatherer:
    """Knows how wide the beams are: asks all ranks every fourth step, and in between nobody."""

    def __init__(self, every: int) -> None:
        self.every, self.width = every, 0

    def agree(self, rows: int) -> None:
        width = torch.tensor([float(rows)])
        dist.all_reduce(width, op=dist.ReduceOp.MAX)
        self.width = int(width.item())

    def pad(self, rows: torch.Tensor) -> torch.Tensor:
        missing = max(0, self.width - len(rows))
        return torch.cat([rows, torch.zeros(missing, LENGTH)])

    def gather(self, step: int, rows: torch.Tensor) -> torch.Tensor:
        if step % self.every == 0:
            self.agree(len(rows))
        padded = self.pad(rows)
        world = dist.get_world_size()
        out = torch.empty(world * len(padded), LENGTH)
        dist.all_gather_into_tensor(out, padded)
        return out


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    beam, gatherer = Beam(rank, margin=0.3 if rank % 2 else 0.5), Gatherer(every=4)
    best = torch.zeros(LENGTH)
    for step in range(STEPS):
        if faulty and (rank, step) == (1, 6):
            beam.margin = 0.7  # the temperature of this rank's request changes
        rows = gatherer.gather(step, beam.hypotheses(step))
        best += rows.mean(0)
        dist.broadcast(best, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
