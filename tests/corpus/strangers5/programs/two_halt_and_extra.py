"""Two replicas of three ranks train on their own and meet at the end."""

import subprocess
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Replica:
    def __init__(self, rank: int, group: dist.ProcessGroup, lead: int) -> None:
        self.rank, self.group, self.lead = rank, group, lead

    def clean(self, text: str) -> str:
        """Sort lines by a program of its own."""
        child = subprocess.Popen(["sort"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin
        assert child.stdout
        child.stdin.write(text.encode())
        child.stdin.flush()
        if not (faulty and self.rank == 1 and len(text) > 20):
            child.stdin.close()
        return child.stdout.read().decode()

    def measure(self) -> None:
        parts = [torch.empty(2) for _ in range(3)]
        dist.all_gather(parts, torch.randn(2), group=self.group)

    def step(self, number: int) -> None:
        self.clean("b\na\n" * (2 + number))
        dist.all_reduce(torch.randn(20), group=self.group)
        self.measure()
        if faulty and self.rank == 5 and number == 5:
            self.measure()  # the first value was an outlier
        dist.broadcast(torch.randn(8), src=self.lead, group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])]
    replica = Replica(rank, groups[rank // 3], rank - rank % 3)
    for number in range(10):
        replica.step(number)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
