"""Calls on the side are made by a pool, so that the step goes on meanwhile."""

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH = 14, 16


class Side:
    """Calls of a group of its own, one after the other as they are handed in."""

    def __init__(self, rank: int, threads: int) -> None:
        self.group = dist.new_group()
        self.rank = rank
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="side")
        self.futures: list[Future[torch.Tensor]] = []

    def _norms(self, rows: torch.Tensor, pause: float) -> torch.Tensor:
        time.sleep(pause)  # copies from the device
        out = torch.empty(dist.get_world_size())
        dist.all_gather_into_tensor(out, rows.norm().reshape(1), group=self.group)
        return out

    def _average(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.clone()
        dist.all_reduce(rows, group=self.group)
        return rows / dist.get_world_size()

    def norms(self, rows: torch.Tensor, pause: float) -> None:
        self.futures.append(self.pool.submit(self._norms, rows, pause))

    def average(self, rows: torch.Tensor) -> None:
        self.futures.append(self.pool.submit(self._average, rows))

    def results(self) -> list[torch.Tensor]:
        done = [future.result() for future in self.futures]
        self.futures.clear()
        return done


def threads_of(rank: int) -> int:
    """One thread for each processor that the job may use for this."""
    processors = 2 if faulty and rank == 4 else 1
    return max(1, processors)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    side = Side(rank, threads_of(rank))
    for step in range(STEPS):
        gradient = torch.randn(WIDTH)
        if step % 5 == 4:
            side.norms(gradient, pause=0.3 if rank % 2 == 0 else 0.05)
            side.average(gradient)
        dist.all_reduce(gradient)
        if step % 5 == 0:
            side.results()
    side.results()
    side.pool.shutdown()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
