"""Groups are kept in a cache of a few; one that was dropped is made anew by all ranks together."""

import sys
from collections import OrderedDict

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
PLAN = ("all", "even", "all", "low", "even", "all", "low", "even", "low", "all")
MEMBERS = {"all": (0, 1, 2, 3), "even": (0, 2), "low": (0, 1)}


class Groups:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.known: OrderedDict[str, dist.ProcessGroup] = OrderedDict()

    def get(self, name: str) -> dist.ProcessGroup:
        if name not in self.known:
            self.known[name] = dist.new_group(list(MEMBERS[name]))
            while len(self.known) > self.capacity:
                self.known.popitem(last=False)
        return self.known[name]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = Groups(3)
    for step in range(30):
        if faulty and rank == 1 and step == 12:
            groups.capacity = 2  # it is short of file descriptors
            groups.known.popitem(last=False)
        name = PLAN[step % len(PLAN)]
        group = groups.get(name)
        if rank in MEMBERS[name]:
            dist.all_reduce(torch.randn(16), group=group)
            dist.broadcast(torch.randn(4), src=0, group=group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
