"""Each rank prefetches in a thread, which agrees with its peers on the samples of each batch."""

import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
SHARDS, BATCH, WIDTH, DEPTH = 18, 4, 8, 2


class Shards:
    """The files of this rank: those that have no samples are left out."""

    def __init__(self, rank: int) -> None:
        self.sizes = [BATCH + (rank + number) % 3 for number in range(SHARDS)]
        if faulty and rank == 2:
            self.sizes[11] = 0  # a download that was cut off

    def __iter__(self):
        for number, size in enumerate(self.sizes):
            if size:
                yield number, size


class Prefetcher:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.ready: queue.Queue[torch.Tensor] = queue.Queue(DEPTH)
        self.thread = threading.Thread(target=self.run, name="prefetch", daemon=True)
        self.thread.start()

    def run(self) -> None:
        for number, size in Shards(self.rank):
            mine = torch.tensor([number, size])
            sizes = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
            dist.all_gather(sizes, mine, group=self.group)
            rows = min(int(each[1]) for each in sizes)
            self.ready.put(torch.rand(rows, WIDTH))

    def next(self) -> torch.Tensor:
        return self.ready.get()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    data = dist.new_group(list(range(world)))
    prefetcher = Prefetcher(rank, data)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(SHARDS):
        batch = prefetcher.next()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    prefetcher.thread.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
