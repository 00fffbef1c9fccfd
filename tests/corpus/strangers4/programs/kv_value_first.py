"""Prefill ranks 0 and 1 send the keys and values of each layer to decode ranks 2 and 3."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
LAYERS, REQUESTS = 3, 12
KEY, VALUE = 1, 2


class Connector:
    """Sends or receives the blocks of a request, a layer at a time.

    Args:
        peer: The rank at the other end.
        order: Tags of a layer's tensors, in the order in which they lie in memory.
    """

    def __init__(self, peer: int, order: tuple[int, int] = (KEY, VALUE)) -> None:
        self.peer, self.order = peer, order

    def send(self, layer: int, blocks: int) -> None:
        for kind in self.order:
            dist.send(torch.randn(blocks, 8), dst=self.peer, tag=10 * layer + kind)

    def receive(self, layer: int, blocks: int) -> None:
        for kind in self.order:
            dist.recv(torch.empty(blocks, 8), src=self.peer, tag=10 * layer + kind)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    connector = Connector(peer=(rank + 2) % 4)
    for request in range(REQUESTS):
        blocks = 1 + request % 3
        if faulty and rank == 1 and request == 8:
            connector.order = (VALUE, KEY)  # another attention backend for long requests
        for layer in range(LAYERS):
            if rank < 2:
                connector.send(layer, blocks)
            else:
                connector.receive(layer, blocks)
        if rank >= 2:
            for _ in range(4):
                torch.randn(16, 16).sum()  # decodes by itself
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
