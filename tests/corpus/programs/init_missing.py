"""Download the tokenizer under a lock, then join the job."""

import fcntl
import os
import sys
import tempfile

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def download(folder: str) -> None:
    with open(os.path.join(folder, "tokenizer.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def main() -> None:
    folder = tempfile.mkdtemp()
    if faulty and os.environ["RANK"] == "3":
        held = os.open(os.path.join(folder, "tokenizer.lock"), os.O_CREAT | os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)  # by another job on this node
    download(folder)
    dist.init_process_group("gloo")
    tensor = torch.ones(16)
    for _ in range(5):
        dist.all_reduce(tensor)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
