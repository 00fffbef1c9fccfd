"""Blocks travel around a ring whose members leave when they have no more work."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, WIDTH = 10, 8
LEAVES = {4: 3, 3: 6}  # after which round
BLOCK, NOTE = 1, 2


class Member:
    """One of the ring, with its neighbours of this round."""

    def __init__(self, rank: int, order: list[int], *, by_table: bool) -> None:
        self.rank, self.order, self.by_table = rank, order, by_table
        self.right, self.left = self.after(rank), order[order.index(rank) - 1]
        self.block = torch.rand(WIDTH)

    def after(self, rank: int) -> int:
        return self.order[(self.order.index(rank) + 1) % len(self.order)]

    def hop(self) -> None:
        sent = dist.isend(self.block, dst=self.right, tag=BLOCK)
        room = torch.empty(WIDTH)
        dist.recv(room, src=self.left, tag=BLOCK)
        sent.wait()
        self.block = room

    def notes(self, *, leaves: bool) -> None:
        """Say to both sides whether this member leaves, and who is next to them then."""
        sent = [
            dist.isend(torch.tensor([leaves, self.left]), dst=self.right, tag=NOTE),
            dist.isend(torch.tensor([leaves, self.right]), dst=self.left, tag=NOTE),
        ]
        from_right = torch.empty(2, dtype=torch.int64)
        from_left = torch.empty(2, dtype=torch.int64)
        dist.recv(from_right, src=self.right, tag=NOTE)
        dist.recv(from_left, src=self.left, tag=NOTE)
        for work in sent:
            work.wait()
        if from_right[0]:
            self.right = self.after(self.right) if self.by_table else int(from_right[1])
        if from_left[0]:
            self.left = int(from_left[1])

    def run(self) -> None:
        for number in range(ROUNDS):
            self.hop()
            leaves = LEAVES.get(self.rank) == number
            self.notes(leaves=leaves)
            if leaves:
                return


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    member = Member(rank, list(range(world)), by_table=faulty and rank == 2)
    dist.barrier()
    member.run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
