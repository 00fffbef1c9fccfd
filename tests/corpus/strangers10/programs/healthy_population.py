"""Population based training: three pairs train apart, the best hands its weights to the worst."""

import hashlib
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.02
GENERATIONS, PAIR, WIDTH = 3, 2, 24
STEPS = ((40, 6, 17), (9, 33, 21), (15, 22, 5))
PAUSES = ((2, 11, 1), (13, 1, 3), (1, 4, 12))


class Member:
    """One trial, on two ranks that reduce gradients with each other."""

    def __init__(self, number: int, group: dist.ProcessGroup) -> None:
        self.number, self.group = number, group
        self.leader = dist.get_rank(group) == 0
        self.weights = torch.full((WIDTH,), float(number))

    def train(self, generation: int) -> None:
        for _ in range(STEPS[generation][self.number]):
            gradient = torch.ones(WIDTH)
            dist.all_reduce(gradient, group=self.group)
            self.weights -= 0.001 * gradient
            digest(0.02)

    def evaluate(self, generation: int) -> float:
        if self.leader:
            time.sleep(PAUSES[generation][self.number] * SECONDS)  # waits for a simulator
        score = torch.tensor([float((self.number + generation) % 3)])
        dist.broadcast(score, group_src=0, group=self.group)
        return score.item()

    def exploit(self, best: int, worst: int) -> None:
        """Pass weights from one trial to another, rank by rank."""
        place = dist.get_rank(self.group)
        if self.number == best:
            dist.send(self.weights, dst=worst * PAIR + place)
        elif self.number == worst:
            dist.recv(self.weights, src=best * PAIR + place)
            self.explore()

    def explore(self) -> None:
        digest(SECONDS * 3)  # looks for other settings near those
        self.weights *= 1.01


def digest(seconds: float) -> str:
    end, state = time.monotonic() + seconds, hashlib.sha256()
    while time.monotonic() < end:
        state.update(b"x" * 4096)
    return state.hexdigest()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([first, first + 1]) for first in range(0, world, PAIR)]
    member = Member(rank // PAIR, groups[rank // PAIR])
    for generation in range(GENERATIONS):
        member.train(generation)
        score = torch.tensor([member.evaluate(generation)])
        scores = [torch.empty(1) for _ in range(world)]
        dist.all_gather(scores, score)
        trials = [scores[first].item() for first in range(0, world, PAIR)]
        member.exploit(trials.index(max(trials)), trials.index(min(trials)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
