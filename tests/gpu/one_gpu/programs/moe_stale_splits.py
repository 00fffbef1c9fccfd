"""Tokens go to experts by all_to_all; one rank sends by the counts of the step before."""

import torch
import torch.distributed as dist
from common import bad, begin, device, rank, world

WIDTH = 512


def route(step: int) -> list[int]:
    """Return how many tokens go to each expert: more than 64 KiB, and different in each step."""
    return [64 + 64 * ((rank + expert + step) % 3) for expert in range(world)]


def main() -> None:
    begin()
    before = route(0)
    for step in range(9):
        counts = route(step)
        sent = torch.tensor(counts, device=device)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        expected = received.tolist()
        splits = before if bad and step == 6 else counts
        tokens = torch.ones(sum(splits), WIDTH, device=device)
        arrived = torch.empty(sum(expected), WIDTH, device=device)
        dist.all_to_all_single(arrived, tokens, expected, splits)  # bad
        combined = torch.empty(sum(counts), WIDTH, device=device)
        dist.all_to_all_single(combined, arrived, counts, expected)
        combined.sum().item()
        before = counts
    dist.barrier()
    dist.destroy_process_group()


main()
