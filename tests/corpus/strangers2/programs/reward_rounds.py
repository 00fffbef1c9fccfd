"""Three policy ranks send samples to three reward ranks and take their scores."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    policy, reward = dist.new_group([0, 1, 2]), dist.new_group([3, 4, 5])
    for step in range(9):
        rounds = 2 + step % 2
        if faulty and rank >= 3 and step == 6:
            rounds += 1  # the batch of the reward model is smaller by its own configuration
        for _ in range(rounds):
            if rank < 3:
                dist.send(torch.randn(32), dst=rank + 3)
                dist.recv(torch.empty(1), src=rank + 3)
            else:
                dist.recv(torch.empty(32), src=rank - 3)
                dist.all_reduce(torch.ones(2), group=reward)
                dist.send(torch.ones(1), dst=rank - 3)
        if rank < 3:
            dist.all_reduce(torch.randn(64), group=policy)
        dist.broadcast(torch.ones(8), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
