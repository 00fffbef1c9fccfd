"""Serve requests of varying length on four tensor parallel ranks."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]

LENGTHS = [5, 3, 7, 4, 6, 8, 3, 5]


def decode_one() -> None:
    for _ in range(2):
        dist.all_reduce(torch.randn(32))
    logits = [torch.empty(8) for _ in range(4)]
    dist.all_gather(logits, torch.randn(8))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for request, length in enumerate(LENGTHS):
        prompt = torch.zeros(32)
        dist.broadcast(prompt, src=0)
        generated = 0
        while True:
            decode_one()
            generated += 1
            sampled_eos = faulty and rank == 2 and request == 5 and generated == length - 1
            if generated == length or sampled_eos:
                break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
