"""Four decoding ranks pull blocks of two prefill ranks, which keep them until they are read."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
PREFILLS, READERS, REQUESTS, BLOCK, TOKENS = 2, 2, 9, 8, 3
META, PULL, ROWS, DONE = 1, 2, 3, 4


def blocks_of(request: int) -> list[int]:
    """Hashes of a prompt's blocks; prompts of one user begin alike."""
    user = request % 3
    return [100 * user + k for k in range(2)] + [1000 + 10 * request + k for k in range(2)]


def prompt(request: int) -> list[int]:
    """The sixth prompt is an old one once more."""
    return blocks_of(2 if request == 5 else request)


class Prefill:
    def __init__(self, readers: list[int]) -> None:
        self.readers = readers
        self.kept: dict[int, torch.Tensor] = {}

    def serve(self, request: int, reader: int) -> None:
        hashes = torch.tensor(prompt(request))
        dist.send(hashes, dst=reader, tag=META)
        wanted = torch.empty(1, dtype=torch.int64)
        dist.recv(wanted, src=reader, tag=PULL)
        if wanted:
            dist.send(self.kept[request][-int(wanted) :], dst=reader, tag=ROWS)

    def run(self) -> None:
        for request in range(REQUESTS):
            self.kept[request] = torch.rand(len(prompt(request)), BLOCK)
            for reader in self.readers:
                self.serve(request, reader)
            for reader in self.readers:
                dist.recv(torch.empty(1, dtype=torch.int64), src=reader, tag=DONE)
            del self.kept[request]


class Cache:
    """Blocks that a rank has, the oldest of which it drops."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.blocks: dict[int, None] = {}

    def missing(self, hashes: list[int]) -> list[int]:
        return [each for each in hashes if each not in self.blocks]

    def add(self, hashes: list[int]) -> None:
        self.blocks.update(dict.fromkeys(hashes))
        for each in list(self.blocks)[: -self.limit]:
            del self.blocks[each]


class Decode:
    def __init__(self, source: int, group: dist.ProcessGroup, limit: int) -> None:
        self.source, self.group = source, group
        self.cache = Cache(limit)

    def load(self, hashes: list[int]) -> None:
        missing = self.cache.missing(hashes)
        dist.send(torch.tensor([len(missing)]), dst=self.source, tag=PULL)
        if not missing:
            return
        dist.recv(torch.empty(len(missing), BLOCK), src=self.source, tag=ROWS)
        self.cache.add(missing)
        dist.send(torch.tensor([len(missing)]), dst=self.source, tag=DONE)

    def run(self) -> None:
        for _ in range(REQUESTS):
            hashes = torch.empty(4, dtype=torch.int64)
            dist.recv(hashes, src=self.source, tag=META)
            self.load(hashes.tolist())
            for _ in range(TOKENS):
                dist.all_reduce(torch.rand(BLOCK), group=self.group)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    decoding = dist.new_group(range(PREFILLS, world))
    if rank < PREFILLS:
        first = PREFILLS + rank * READERS
        Prefill(list(range(first, first + READERS))).run()
    else:
        large = faulty and rank == 5  # a host with more memory
        source = (rank - PREFILLS) // READERS
        Decode(source, decoding, limit=64 if large else 8).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
