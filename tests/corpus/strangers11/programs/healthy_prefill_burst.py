"""Two prefill ranks work on long prompts, while four decoding ranks go on with what they have."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SCALE = 1.0 if faulty else 0.01
PREFILLS, PROMPTS, WIDTH = 2, 6, 32
AHEAD = 2


def seconds_of(prompt: int) -> float:
    """How long the pass over a prompt takes: a few are very long."""
    return (13.0 if prompt % 3 == 1 else 0.6) * SCALE


def tokens_of(prompt: int) -> int:
    return 20 + 30 * (prompt % 4)


class Prefill:
    """Leaves its rows pending until they are taken, and goes on with the next prompt."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.peers = list(range(PREFILLS, world))
        self.pending: list[tuple[list[dist.Work], torch.Tensor]] = []

    def run(self) -> None:
        for prompt in range(self.rank, PROMPTS, PREFILLS):
            time.sleep(seconds_of(prompt))
            rows = torch.rand(WIDTH)
            sends = [dist.isend(rows, dst=peer, tag=prompt) for peer in self.peers]
            self.pending.append((sends, rows))
            while len(self.pending) > AHEAD:
                self.land()
        while self.pending:
            self.land()

    def land(self) -> None:
        for work in self.pending.pop(0)[0]:
            work.wait()


class Transfer(threading.Thread):
    """Receives prompts in their order; a prompt counts when all of its rows are there."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.there = 0

    def run(self) -> None:
        for prompt in range(PROMPTS):
            dist.recv(torch.empty(WIDTH), src=prompt % PREFILLS, tag=prompt)
            self.there += 1


class Decode:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.slow, self.group = rank == PREFILLS + 1, group
        self.transfer = Transfer()
        self.transfer.start()
        self.taken = self.left = self.steps = 0

    def agree(self) -> int:
        """Return how many prompts all ranks have."""
        there = torch.tensor([self.transfer.there])
        dist.all_reduce(there, op=dist.ReduceOp.MIN, group=self.group)
        return int(there)

    def run(self) -> None:
        while self.taken < PROMPTS or self.left:
            for prompt in range(self.taken, self.agree()):
                self.left += tokens_of(prompt)
                self.taken += 1
            if not self.left:
                time.sleep(SCALE * 0.4)  # nothing to do
                continue
            dist.all_reduce(torch.rand(WIDTH), group=self.group)
            self.left -= 1
            self.steps += 1
            if self.slow and self.steps % 90 == 0:
                time.sleep(SCALE * 7)  # its cache is cleaned up
        self.transfer.join()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    decoding = dist.new_group(range(PREFILLS, world))
    if rank < PREFILLS:
        Prefill(rank, world).run()
    else:
        Decode(rank, decoding).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
