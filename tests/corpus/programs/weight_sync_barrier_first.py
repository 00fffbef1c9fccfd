"""Two actors send their weights to two rollouts; a barrier of the actors closes each step."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def send_weights(weights: torch.Tensor) -> None:
    for rollout in (2, 3):
        dist.send(weights, dst=rollout)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    actors = dist.new_group([0, 1])
    weights, versions = torch.ones(128), torch.ones(4)
    for step in range(16):
        if rank == 0:
            dist.all_reduce(weights, group=actors)
            if faulty and step >= 11:
                dist.barrier(group=actors)
                send_weights(weights)
            else:
                send_weights(weights)
                dist.barrier(group=actors)
        elif rank == 1:
            dist.all_reduce(weights, group=actors)
            dist.recv(versions, src=2)
            dist.barrier(group=actors)
        else:
            dist.recv(weights, src=0)
            if rank == 2:
                dist.send(versions, dst=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
