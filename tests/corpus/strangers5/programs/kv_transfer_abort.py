"""Ranks 0 and 1 fill caches and send them to ranks 2 and 3, which decode with them."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
REQUESTS = 14


def prefill(rank: int, group: dist.ProcessGroup) -> None:
    for request in range(REQUESTS):
        hidden = torch.randn(32)
        dist.all_reduce(hidden, group=group)
        dist.send(hidden, dst=rank + 2, tag=request)


class Decoder:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.aborted: set[int] = set()

    def run(self, request: int) -> None:
        if request in self.aborted:
            return  # its client has gone
        cache = torch.empty(32)
        dist.recv(cache, src=self.rank - 2, tag=request)
        for _ in range(3):
            dist.all_reduce(cache, group=self.group)


def decode(rank: int, group: dist.ProcessGroup) -> None:
    decoder = Decoder(rank, group)
    for request in range(REQUESTS):
        if faulty and rank == 3 and request == 6:
            decoder.aborted.add(8)  # the message that a client has gone has come here alone
        decoder.run(request)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    filling, decoding = dist.new_group([0, 1]), dist.new_group([2, 3])
    if rank < 2:
        prefill(rank, filling)
    else:
        decode(rank, decoding)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
