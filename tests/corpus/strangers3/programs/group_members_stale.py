"""Before each phase the ranks that decode make a group of their own, without the others."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Membership:
    """Which ranks decode in which phase; rank 0 never does."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.decoders = [1, 2, 3]

    def refresh(self, phase: int) -> None:
        late = faulty and self.rank == 2 and phase == 1  # rank 3 had not signed in yet
        self.decoders = [1, 2] if late else [1, 2, 3]

    def group(self) -> dist.ProcessGroup | None:
        if self.rank not in self.decoders:
            return None
        return dist.new_group(self.decoders, use_local_synchronization=True)


def decode(group: dist.ProcessGroup, tokens: int) -> None:
    for _ in range(tokens):
        logits = torch.randn(16)
        dist.all_reduce(logits, group=group)


def main() -> None:
    dist.init_process_group("gloo")
    membership = Membership(dist.get_rank())
    for phase in range(4):
        membership.refresh(phase)
        group = membership.group()
        if group is not None:
            decode(group, tokens=8)
        dist.all_reduce(torch.ones(2))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
