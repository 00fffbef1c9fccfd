"""A master hands out tasks and takes results from any worker, each answered with the next task."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS = 8


def master(world: int) -> None:
    results: list[float] = []
    for number in range(ROUNDS):
        for worker in range(1, world):
            dist.send(torch.tensor([float(number)]), dst=worker)
        for _ in range(world - 1):
            result = torch.empty(1)
            dist.recv(result)  # whoever is ready first
            results.append(result.item())
    print(sum(results))


def work(rank: int) -> None:
    for number in range(ROUNDS):
        task = torch.empty(1)
        dist.recv(task, src=0)
        here = faulty and number == 5
        if here and rank == 4:
            time.sleep(0.5)  # a longer task
        answers = [task.item() ** 2]
        if here and rank == 2:
            answers.append(-task.item())  # both roots are reported
        for answer in answers:
            dist.send(torch.tensor([answer]), dst=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        master(world)
    else:
        work(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
