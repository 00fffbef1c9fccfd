"""Ranks claim shards in a registry that is one value of the store, changed by compare_set."""

import json
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, SHARDS = 6, 24
KEY = "registry"


class Cached:
    """Reads of the store that may be a little old."""

    def __init__(self, store: dist.Store, seconds: float) -> None:
        self.store, self.seconds = store, seconds
        self.values: dict[str, tuple[float, str]] = {}

    def read(self, key: str) -> str:
        now = time.monotonic()
        if key not in self.values or now - self.values[key][0] >= self.seconds:
            self.values[key] = (now, self.store.get(key).decode())
        return self.values[key][1]

    def swap(self, key: str, old: str, new: str) -> bool:
        """Write a value where there is still the old one."""
        return bool(self.store.compare_set(key, old, new).decode() == new)


class Registry:
    def __init__(self, store: Cached, rank: int) -> None:
        self.store, self.rank = store, rank

    def size(self) -> int:
        """Return how many shards are claimed."""
        return len(json.loads(self.store.read(KEY))["owners"])

    def claim(self, shard: int) -> None:
        while True:
            old = self.store.read(KEY)
            state = json.loads(old)
            state["owners"][str(shard)] = self.rank
            state["edits"] += 1
            if self.store.swap(KEY, old, json.dumps(state)):
                return
            time.sleep(0.01)  # somebody was faster


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set(KEY, json.dumps({"owners": {}, "edits": 0}))
    dist.barrier()
    registry = Registry(Cached(store, seconds=0.0), rank)
    for epoch in range(EPOCHS):
        if faulty and (rank, epoch) == (1, 3):
            registry.store.seconds = 7200.0  # to spare the store
        before = registry.size()
        sizes = [torch.empty(1) for _ in range(world)]
        dist.all_gather(sizes, torch.tensor([float(before)]))
        if rank == 0:
            registry.claim(epoch * world % SHARDS)
        dist.barrier()
        if rank != 0:
            registry.claim((epoch * world + rank) % SHARDS)
        dist.all_reduce(torch.rand(4))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
