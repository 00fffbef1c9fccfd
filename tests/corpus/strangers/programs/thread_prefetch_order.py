"""A thread agrees with its peers on the next shards, on a group of its own."""

import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def prefetch(group: dist.ProcessGroup, rank: int, ready: "queue.Queue[int]") -> None:
    for step in range(16):
        fields = ["lengths", "order"]
        if faulty and rank == 2 and step >= 9:
            fields = sorted(fields, reverse=True)  # the order of a set differs between processes
        for name in fields:
            if name == "lengths":
                lengths = [torch.empty(4) for _ in range(4)]
                dist.all_gather(lengths, torch.ones(4), group=group)
            else:
                dist.broadcast(torch.ones(8), src=0, group=group)
        ready.put(step)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group([0, 1, 2, 3])
    ready: queue.Queue[int] = queue.Queue(2)
    thread = threading.Thread(target=prefetch, args=(group, rank, ready))
    thread.start()
    for _ in range(16):
        ready.get()
        dist.all_reduce(torch.randn(64))
    thread.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
