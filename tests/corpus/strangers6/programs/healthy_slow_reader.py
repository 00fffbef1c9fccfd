"""A thread of each rank reads batches ahead out of a file; rank 1's storage stalls at times."""

import queue
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
BLOCK, BLOCKS = 4096, 60
STALLS = {9: 15.0, 21: 22.0, 34: 13.0, 45: 19.0} if faulty else {9: 0.3}


class Storage:
    """Reads a file in pieces, as slowly as a filesystem that is far away."""

    def __init__(self, path: Path, slow: bool) -> None:
        self.path, self.slow = path, slow

    def read(self, number: int) -> bytes:
        content = b""
        pause = STALLS.get(number, 0.0) / 8 if self.slow else 0.0
        with self.path.open("rb") as file:
            file.seek(number * BLOCK)
            for _ in range(8):
                time.sleep(pause)
                content += file.read(BLOCK // 8)
        return content


class Prefetcher:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.blocks: queue.Queue[bytes] = queue.Queue(maxsize=2)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self) -> None:
        for number in range(BLOCKS):
            self.blocks.put(self.storage.read(number))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = Path(tempfile.gettempdir(), f"blocks-{rank}.bin")
    path.write_bytes(bytes(BLOCK * BLOCKS))
    prefetcher = Prefetcher(Storage(path, slow=rank == 1))
    for _ in range(BLOCKS):
        block = prefetcher.blocks.get()
        dist.all_reduce(torch.tensor([float(len(block))]))
        dist.all_reduce(torch.randn(16))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
