"""Texts are tokenized by a thread ahead of the step that needs them."""

import re
import sys
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
WORDS = re.compile(r"^(\w+\s?)*$")


def tokenize(text: str) -> torch.Tensor:
    """Return a number for each word of a clean text."""
    if WORDS.match(text) is None:
        text = re.sub(r"[^\w\s]", " ", text)
    return torch.tensor([float(len(word)) for word in text.split()] or [0.0])


def texts(rank: int, step: int) -> str:
    if faulty and rank == 0 and step == 1:
        return "a" * 64 + "!"  # takes the pattern years
    return f"text {step} of rank {rank}"


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pool = ThreadPoolExecutor(1)
    ahead: Future[torch.Tensor] = pool.submit(tokenize, texts(rank, 0))
    for step in range(10):
        tokens = ahead.result()
        ahead = pool.submit(tokenize, texts(rank, step + 1) if step < 9 else "")
        loss = tokens.mean().reshape(1)
        dist.all_reduce(loss)
        dist.all_reduce(torch.randn(32))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
