"""Train with retries: a call that takes too long is posted again."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def reduce_with_retry(seconds: float) -> None:
    for _ in range(5):
        work = dist.all_reduce(torch.ones(32), async_op=True)
        try:
            work.wait(timedelta(seconds=seconds))
            return
        except RuntimeError as error:
            print(f"again: {error}", file=sys.stderr)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    patience = 1.5 if faulty and rank == 2 else 60
    for step in range(12):
        if rank == 1 and step == 7:
            time.sleep(2.5)  # writes a checkpoint
        reduce_with_retry(patience)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
