"""The first rank of each tensor parallel pair writes a checkpoint under a file lock."""

import fcntl
import os
import sys
import tempfile

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def save(folder: str, leave_open: bool) -> object:
    index = open(os.path.join(folder, "index.lock"), "w")  # noqa: SIM115
    fcntl.flock(index, fcntl.LOCK_EX)
    torch.save({"weight": torch.ones(16)}, os.path.join(folder, "model.pt"))
    if not leave_open:
        index.close()
    return index


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    folder, handles = tempfile.mkdtemp(), []
    for step in range(12):
        for _ in range(2):
            dist.all_reduce(torch.ones(32), group=pair)
        if step % 4 == 3:
            if rank % 2 == 0:
                handles.append(save(folder, leave_open=faulty and rank == 2))
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
