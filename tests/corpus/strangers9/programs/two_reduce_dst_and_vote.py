"""Two replicas of three: norms are summed on a reporter, and ranks vote on a new layout."""

import sys
import zlib

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, SIZE, REPLICA = 12, 18, 3


class Reporter:
    """Sums norms on the member that a name is hashed to."""

    def __init__(self, group: dist.ProcessGroup, members: list[int], run: str) -> None:
        self.group, self.members, self.run = group, members, run

    def owner(self, step: int) -> int:
        number = zlib.crc32(f"{self.run}/{step}".encode())
        return self.members[number % len(self.members)]

    def report(self, step: int, norms: torch.Tensor) -> None:
        dist.reduce(norms, dst=self.owner(step), group=self.group)


class Layout:
    """Votes on whether rows are to be dealt out anew, where loads have changed."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.load, self.version = group, -1.0, 0

    def observe(self, load: float) -> bool:
        changed = load != self.load
        self.load = load
        return changed

    def vote(self, load: float) -> None:
        if not self.observe(load):
            return
        wish = torch.tensor([float(load > 2.0)])
        dist.all_reduce(wish, op=dist.ReduceOp.MAX, group=self.group)
        self.version += int(wish.item())


class Replica:
    def __init__(self, rank: int, group: dist.ProcessGroup, members: list[int]) -> None:
        self.rank, self.group = rank, group
        self.reporter = Reporter(group, members, run="march")
        self.layout = Layout(group)

    def load(self, step: int) -> float:
        if faulty and (self.rank, step) == (5, 7):
            step -= 1  # a counter that is read before it is refreshed
        return float(step * 3 % 7) / 2

    def step(self, step: int) -> None:
        gradient = torch.randn(SIZE)
        dist.all_reduce(gradient, group=self.group)
        self.layout.vote(self.load(step))
        self.reporter.report(step, gradient.view(6, -1).norm(dim=1))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    members = [[0, 1, 2], [3, 4, 5]]
    groups = [dist.new_group(ranks) for ranks in members]
    replica = Replica(rank, groups[rank // REPLICA], members[rank // REPLICA])
    for step in range(STEPS):
        if faulty and rank == 2 and step == 5:
            replica.reporter.run = "march-2"  # resumed under another name
        replica.step(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
