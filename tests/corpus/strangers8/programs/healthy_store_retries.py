"""One rank in turn prepares a shard; the others ask the store again and again whether it is."""

import datetime
import json
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = [3.0, 17.0, 11.0, 19.0, 12.0, 16.0] if faulty else [0.05, 2.5, 0.05]
PATIENCE = datetime.timedelta(seconds=2)


class Shards:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.store = dist.distributed_c10d._get_default_store()
        self.retries = 0

    def prepare(self, number: int) -> dict[str, int]:
        time.sleep(SECONDS[number])  # a service elsewhere sorts it
        return {"first": 100 * number, "last": 100 * number + 99}

    def wait(self, key: str) -> None:
        while True:
            try:
                self.store.wait([key], PATIENCE)
            except dist.DistStoreError:
                self.retries += 1
                continue
            return

    def get(self, number: int) -> dict[str, int]:
        key = f"shard/{number}"
        if number % self.world == self.rank:
            self.store.set(key, json.dumps(self.prepare(number)))
        else:
            self.wait(key)
        return json.loads(self.store.get(key))


class Trainer:
    def __init__(self, world: int) -> None:
        self.world = world
        self.weights = torch.randn(26)

    def train(self, shard: dict[str, int]) -> None:
        for row in range(shard["first"], shard["last"], 5):
            gradient = self.weights * (row % 7)
            dist.all_reduce(gradient)
            self.weights -= 1e-3 * gradient / self.world
        losses = [torch.empty(1) for _ in range(self.world)]
        dist.all_gather(losses, self.weights.square().sum().reshape(1))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shards, trainer = Shards(rank, world), Trainer(world)
    for number in range(len(SECONDS)):
        trainer.train(shards.get(number))
    dist.barrier()
    print(f"rank {rank}: asked {shards.retries} times again", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
