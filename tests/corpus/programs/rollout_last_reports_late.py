"""Three trainers average, then serve two samplers; the last sampler's statistics come first."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainers = dist.new_group([0, 1, 2])
    weights, statistics = torch.ones(64), torch.ones(8)
    for step in range(16):
        late = faulty and step >= 12
        if rank == 2:
            dist.recv(statistics, src=4)
        if rank <= 2:
            dist.all_reduce(weights, group=trainers)
        if rank == 1:
            dist.send(weights, dst=3)
            dist.send(weights, dst=4)
        elif rank == 3:
            dist.recv(weights, src=1)
        elif rank == 4:
            if not late:
                dist.send(statistics, dst=2)
            dist.recv(weights, src=1)
            if late:
                dist.send(statistics, dst=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
