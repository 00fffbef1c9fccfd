"""A loader and a collector of statistics have a thread each, and a group from their first use."""

import queue
import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
ROUNDS, SHARDS = 10, 6


class Groups:
    """One group of all ranks for each user, made when it first asks."""

    def __init__(self) -> None:
        self.made: dict[str, dist.ProcessGroup] = {}
        self.lock = threading.Lock()

    def of(self, user: str) -> dist.ProcessGroup:
        with self.lock:
            if user not in self.made:
                self.made[user] = dist.new_group(range(dist.get_world_size()))
            return self.made[user]


class Index:
    """The list of shards, which is read once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def open(self) -> None:
        time.sleep(self.seconds)


class Loader(threading.Thread):
    def __init__(self, groups: Groups, index: Index) -> None:
        super().__init__(daemon=True)
        self.groups, self.index = groups, index
        self.ready: queue.Queue[torch.Tensor] = queue.Queue(maxsize=2)

    def agree(self) -> torch.Tensor:
        votes = [torch.empty(SHARDS) for _ in range(dist.get_world_size())]
        dist.all_gather(votes, torch.rand(SHARDS), group=self.groups.of("loader"))
        return torch.stack(votes).sum(0)

    def run(self) -> None:
        self.index.open()
        for _ in range(ROUNDS):
            self.ready.put(self.agree())


class Statistics(threading.Thread):
    def __init__(self, groups: Groups) -> None:
        super().__init__(daemon=True)
        self.groups = groups
        self.norms: queue.Queue[float] = queue.Queue()

    def run(self) -> None:
        time.sleep(0.8)  # nothing is worth a look before
        for _ in range(ROUNDS):
            group = self.groups.of("statistics")
            norm = torch.rand(3)
            dist.all_reduce(norm, group=group)
            self.norms.put(norm.sum().item())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cold = faulty and rank == 4  # the other hosts have the index in their page cache
    groups = Groups()
    loader, statistics = Loader(groups, Index(2.0 if cold else 0.01)), Statistics(groups)
    loader.start()
    statistics.start()
    for _ in range(ROUNDS):
        rows = loader.ready.get()
        dist.all_reduce(rows)
    for _ in range(ROUNDS):
        statistics.norms.get()
    loader.join()
    statistics.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
