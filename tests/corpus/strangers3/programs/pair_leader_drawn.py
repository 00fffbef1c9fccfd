"""In each pair of ranks one is drawn to lead a step, and sends its plan to the other."""

import random
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Pair:
    def __init__(self, members: list[int], group: dist.ProcessGroup, seed: int) -> None:
        self.members, self.group = members, group
        self.random = random.Random(seed)

    def leader(self) -> int:
        return self.random.choice(self.members)

    def share(self, rank: int, step: int) -> dict[str, int]:
        leader = self.leader()
        plan = [{"step": step, "rows": 3 + step % 4} if rank == leader else None]
        dist.broadcast_object_list(plan, src=leader, group=self.group)
        return plan[0]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [[0, 1], [2, 3]]
    groups = [dist.new_group(members) for members in pairs]
    pair = None
    if rank < 4:
        pair = Pair(pairs[rank // 2], groups[rank // 2], seed=rank // 2)
    for step in range(20):
        if faulty and rank == 3 and step == 8:
            print("leads:", pair.leader())  # draws once more, for a line of its log
        rows = pair.share(rank, step)["rows"] if pair else 1
        total = torch.tensor([rows])
        dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
