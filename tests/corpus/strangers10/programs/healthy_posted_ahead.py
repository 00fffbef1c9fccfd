"""Blocks of a grid post their receives a phase ahead and look at them between pieces of work."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SCALE = 1.0 if faulty else 0.01
PHASES, EDGE = 6, 5


class Neighbour:
    """One side of a block: what is to come in this phase and in the next one."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.posted: list[tuple[dist.Work, torch.Tensor]] = []
        self.sent: list[tuple[dist.Work, torch.Tensor]] = []

    def post(self, phase: int) -> None:
        room = torch.empty(EDGE)
        self.posted.append((dist.irecv(room, src=self.peer, tag=phase), room))

    def send(self, edge: torch.Tensor, phase: int) -> None:
        self.sent.append((dist.isend(edge, dst=self.peer, tag=phase), edge))

    def ready(self) -> bool:
        return self.posted[0][0].is_completed()

    def take(self) -> torch.Tensor:
        work, room = self.posted.pop(0)
        work.wait()
        return room


class Block:
    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        around = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < world]
        self.sides = [Neighbour(peer) for peer in around]
        self.cells = torch.rand(EDGE)

    def pieces(self, phase: int) -> int:
        """Work within the block; the front of a fire is in another one in each phase."""
        return 9 if (2 * phase + 1) % 5 == self.rank else 1 + self.rank % 2

    def run(self, phase: int) -> None:
        for side in self.sides:
            if phase + 1 < PHASES:
                side.post(phase + 1)
            side.send(self.cells.clone(), phase)
        for _ in range(self.pieces(phase)):
            time.sleep(SCALE * 1.2)
        for side in sorted(self.sides, key=lambda side: not side.ready()):
            self.cells += 0.1 * side.take()

    def finish(self) -> None:
        for side in self.sides:
            for work, _ in side.sent:
                work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    block = Block(rank, world)
    for side in block.sides:
        side.post(0)
    for phase in range(PHASES):
        block.run(phase)
    block.finish()
    dist.all_reduce(block.cells)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
