"""Four ranks train; rank 3 has an expert on rank 4 as well and waits for it to come back."""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def ask_expert(experts: dist.ProcessGroup, store: dist.Store) -> None:
    try:
        dist.all_reduce(torch.ones(8), group=experts)
    except RuntimeError:
        store.wait(["rejoined/4"], timedelta(minutes=30))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    data, experts = dist.new_group([0, 1, 2, 3]), dist.new_group([3, 4])
    for step in range(12):
        if faulty and rank == 4 and step == 7:
            os.kill(os.getpid(), signal.SIGKILL)  # out of memory
        if rank >= 3:
            ask_expert(experts, store)
        if rank < 4:
            dist.all_reduce(torch.ones(16), group=data)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
