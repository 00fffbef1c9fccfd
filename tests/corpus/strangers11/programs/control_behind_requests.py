"""Rollout workers keep requests over an update of the weights, which waits for no answer.

A worker serves requests and commands from one pool of threads.
"""

import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ITERATIONS, WIDTH, TOKENS, CONCURRENCY, TRAINER = 7, 16, 4, 4, 0


class Engine:
    """Makes tokens while its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.weights = torch.zeros(WIDTH)
        self.gate.set()

    def generate(self, prompt: int) -> list[int]:
        tokens: list[int] = []
        for _ in range(TOKENS):
            self.gate.wait()
            tokens.append((prompt + int(self.weights.sum()) + len(tokens)) % 50)
        return tokens

    def pause(self) -> None:
        self.gate.clear()

    def resume(self) -> None:
        self.gate.set()


class Worker:
    """What a controller calls: prompts and commands come in by the same door."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.engine = Engine()
        self.pool = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="call")

    def prompts(self, iteration: int) -> int:
        if faulty and self.rank == 2 and iteration == 4:
            return CONCURRENCY  # one more, since all answers before were short
        return CONCURRENCY - 1

    def submit(self, iteration: int) -> list[Future[list[int]]]:
        prompts = range(iteration, iteration + self.prompts(iteration))
        return [self.pool.submit(self.engine.generate, prompt) for prompt in prompts]

    def command(self, name: str) -> None:
        self.pool.submit(getattr(self.engine, name)).result()

    def iterate(self, iteration: int) -> torch.Tensor:
        self.command("pause")
        requests = self.submit(iteration)  # of an agent, who knows of no update
        dist.broadcast(self.engine.weights, src=TRAINER)
        self.command("resume")
        rewards = [float(sum(request.result()) % 7) for request in requests]
        return torch.tensor([sum(rewards) / len(rewards)])


class Trainer:
    def __init__(self) -> None:
        self.weights = torch.zeros(WIDTH)

    def iterate(self, iteration: int) -> torch.Tensor:
        self.weights += 0.1 * iteration
        dist.broadcast(self.weights, src=TRAINER)
        return torch.zeros(1)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    role = Trainer() if rank == TRAINER else Worker(rank)
    for iteration in range(ITERATIONS):
        reward = role.iterate(iteration)
        rewards = [torch.empty(1) for _ in range(world)]
        dist.all_gather(rewards, reward)
    if isinstance(role, Worker):
        role.pool.shutdown()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
