"""Ranks claim files of unequal size from a folder, as they come, and meet at the end."""

import hashlib
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
UNIT = 3.0 if faulty else 0.03
EPOCHS, FILES = (4, 12) if faulty else (2, 6)


class Folder:
    """Files that ranks claim by making another file, which only one of them can."""

    def __init__(self, epoch: int) -> None:
        self.path = os.path.join(tempfile.gettempdir(), f"epoch-{epoch}")
        os.makedirs(self.path, exist_ok=True)

    def claim(self, number: int) -> bool:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        try:
            os.close(os.open(os.path.join(self.path, str(number)), flags))
        except FileExistsError:
            return False
        return True


def tokenize(seconds: float) -> None:
    end, digest = time.monotonic() + seconds, b""
    while time.monotonic() < end:
        digest = hashlib.sha256(digest + bytes(1 << 14)).digest()
        time.sleep(0.01)


def main() -> None:
    dist.init_process_group("gloo")
    for epoch in range(EPOCHS):
        folder, done = Folder(epoch), torch.zeros(1)
        for number in range(FILES):
            if folder.claim(number):
                tokenize(UNIT * (1 + number % 5) ** 1.3)
                done += 1
        dist.all_reduce(done)
        if done.item() != FILES:
            raise RuntimeError(f"{done.item()} files of {FILES}")
        for _ in range(5):
            dist.all_reduce(torch.randn(8))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
