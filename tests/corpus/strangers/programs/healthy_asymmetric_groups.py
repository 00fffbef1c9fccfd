"""A coordinator polls its workers in turn; groups overlap, and members post unequal numbers."""

import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    front, back = dist.new_group([0, 1, 2]), dist.new_group([2, 3, 4])
    for step in range(300 if faulty else 5):
        if rank in (0, 1, 2):
            dist.all_reduce(torch.ones(4), group=front)
        if rank in (2, 3, 4) and step % 5 == 0:
            dist.all_reduce(torch.ones(4), group=back)
        worker = 1 + step % 4
        if rank == 0:  # one worker a step reports, worker 4 with two messages
            for _ in range(2 if worker == 4 else 1):
                dist.recv(torch.empty(4), src=worker)
        elif rank == worker:
            for _ in range(2 if worker == 4 else 1):
                dist.send(torch.ones(4), dst=0)
        time.sleep(0.8 if faulty and rank == 0 else 0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
