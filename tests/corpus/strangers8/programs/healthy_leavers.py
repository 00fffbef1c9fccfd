"""Rank 0 deals tasks out; a worker whose share is done leaves the job, the others go on."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.01
SHARES = {1: 34, 2: 22, 3: 14, 4: 6}  # tasks of each worker
STOP = -1.0


class Dealer:
    """Sends tasks to all workers that have some left, and stops those that have none."""

    def __init__(self) -> None:
        self.left = dict(SHARES)
        self.results: dict[int, float] = dict.fromkeys(SHARES, 0.0)

    def deal(self) -> None:
        for worker, left in self.left.items():
            dist.send(torch.tensor([float(left)]), dst=worker)

    def collect(self) -> None:
        result = torch.empty(1)
        for worker in self.left:
            dist.recv(result, src=worker)
            self.results[worker] += result.item()

    def dismiss(self) -> None:
        for worker in [worker for worker, left in self.left.items() if left == 1]:
            dist.send(torch.tensor([STOP]), dst=worker)
        self.left = {worker: left - 1 for worker, left in self.left.items() if left > 1}

    def run(self) -> None:
        while self.left:
            self.deal()
            self.collect()
            self.dismiss()
        print(self.results, flush=True)


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank, self.done = rank, 0

    def compute(self, task: torch.Tensor) -> torch.Tensor:
        # Each eighth task is a long one, of the last two workers
        long = self.done % 8 == 7 and self.rank < 3
        time.sleep(SECONDS * (11.0 if long else 1.6))
        return task.sqrt()

    def run(self) -> None:
        task = torch.empty(1)
        while True:
            dist.recv(task, src=0)
            if task.item() == STOP:
                return
            dist.send(self.compute(task), dst=0)
            self.done += 1


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    if rank == 0:
        Dealer().run()
    else:
        Worker(rank).run()
    # Nobody waits for the others here
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
