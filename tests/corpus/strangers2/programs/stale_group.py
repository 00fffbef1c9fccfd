"""After a membership change all ranks make a new group and drop the old one."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Mesh:
    def __init__(self) -> None:
        self.group = dist.new_group(list(range(5)))

    def renew(self, *, keep: bool) -> None:
        group = dist.new_group(list(range(5)))
        if not keep:
            self.group = group


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = Mesh()
    for step in range(14):
        if step in (4, 9):
            mesh.renew(keep=faulty and rank == 3 and step == 9)  # a cached handle
        for _ in range(2):
            dist.all_reduce(torch.randn(48), group=mesh.group)
        dist.barrier(group=mesh.group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
