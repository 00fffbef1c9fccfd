"""Ranks 1 and 2, 3 and 4 exchange blocks of their caches over sockets; rank 0 schedules."""

import socket
import struct
import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, BLOCK = 9, 4096
HEADER = struct.Struct("!q")


class Peer:
    """A connection to the other rank of a pair; the lower one listens."""

    def __init__(self, rank: int, store: dist.Store) -> None:
        lower = rank - 1 if rank % 2 == 0 else rank
        key = f"cache/{lower}"
        if rank == lower:
            with socket.create_server(("127.0.0.1", 0)) as server:
                store.set(key, str(server.getsockname()[1]))
                self.connection, _ = server.accept()
        else:
            port = int(store.get(key))
            self.connection = socket.create_connection(("127.0.0.1", port))
            self.connection.settimeout(None)

    def send(self, data: bytes) -> None:
        self.connection.sendall(HEADER.pack(len(data)) + data)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.connection.recv(min(1 << 16, size - len(data)))
            if not part:
                raise ConnectionError("peer has closed the connection")
            data += part
        return bytes(data)

    def receive(self) -> bytes:
        (size,) = HEADER.unpack(self._exactly(HEADER.size))
        return self._exactly(size)


class Cache:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def blocks(self, step: int) -> int:
        blocks = 1 + (self.rank + step) % 3
        if faulty and step == 6 and self.rank in (1, 2):
            blocks = 5000  # a conversation that both have half of
        return blocks

    def data(self, step: int) -> bytes:
        return bytes(BLOCK) * self.blocks(step)


def exchange(peer: Peer, cache: Cache, step: int) -> int:
    peer.send(cache.data(step))
    return len(peer.receive()) // BLOCK


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    peer = Peer(rank, store) if rank else None
    cache = Cache(rank)
    for step in range(STEPS):
        received = exchange(peer, cache, step) if peer else 0
        blocks = torch.tensor([received])
        dist.all_reduce(blocks)
        dist.broadcast(blocks, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
