"""A thread saves a checkpoint with calls of the default group."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def save(delay: float) -> None:
    time.sleep(delay)
    parts = [torch.empty(64) for _ in range(4)]
    dist.all_gather(parts, torch.randn(64))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(12):
        dist.all_reduce(torch.randn(64))
        late = faulty and rank == 1 and step == 8
        saving = threading.Thread(target=save, args=(1.0 if late else 0.0,))
        saving.start()
        if not late:
            saving.join()
        dist.barrier()
        saving.join()
        dist.broadcast(torch.ones(8), src=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
