"""Three pipeline stages of two tensor parallel ranks each."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = rank // 2
    tp = [dist.new_group([2 * index, 2 * index + 1]) for index in range(3)][stage]
    for step in range(9):
        for micro in range(4):
            if faulty and stage == 1 and step == 5 and micro == 2:
                continue  # an empty microbatch
            hidden = torch.zeros(32)
            if stage > 0:
                dist.recv(hidden, src=rank - 2)
            for _ in range(2):
                dist.all_reduce(hidden, group=tp)
            if stage < 2:
                dist.send(hidden, dst=rank + 2)
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
