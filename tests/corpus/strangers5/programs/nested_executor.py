"""Shards are read ahead by a pool of one thread; packed ones are unpacked by the same pool."""

import sys
import zlib
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Reader:
    def __init__(self, rank: int) -> None:
        self.rank, self.pool = rank, ThreadPoolExecutor(1)

    def content(self, number: int) -> bytes:
        rows = bytes(64 * [number])
        packed = faulty and self.rank == 4 and number == 7
        return zlib.compress(rows) if packed else rows

    def read(self, number: int) -> bytes:
        content = self.content(number)
        if len(content) < 64:
            return self.pool.submit(zlib.decompress, content).result()
        return content

    def ahead(self, number: int) -> "Future[bytes]":
        return self.pool.submit(self.read, number)


def main() -> None:
    dist.init_process_group("gloo")
    reader = Reader(dist.get_rank())
    coming = reader.ahead(0)
    for number in range(12):
        shard = coming.result()
        coming = reader.ahead(number + 1)
        values = torch.tensor(list(shard), dtype=torch.float32)
        dist.all_reduce(values)
        dist.all_reduce(values.mean().reshape(1), op=dist.ReduceOp.MAX)
    coming.result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
