"""Each rank has a child process tokenise its documents, and takes the result from a queue."""

import multiprocessing
import sys
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
FORK: Any = multiprocessing.get_context("fork")
ROUNDS = 7


def tokenise(documents: list[str], results: Any) -> None:
    results.put([[len(word) for word in document.split()] for document in documents])


def tokens_of(documents: list[str]) -> list[list[int]]:
    results = FORK.Queue()
    child = FORK.Process(target=tokenise, args=(documents, results))
    child.start()
    child.join()
    return list(results.get())


def documents_of(rank: int, number: int) -> list[str]:
    documents = [f"document {number} of rank {rank}"] * 20
    if faulty and rank == 4 and number == 5:
        documents += ["a long book " * 40_000]
    return documents


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for number in range(ROUNDS):
        tokens = tokens_of(documents_of(rank, number))
        count = torch.tensor([sum(map(len, tokens))])
        dist.all_reduce(count)
        dist.all_reduce(torch.randn(25))
        dist.broadcast(torch.randn(25), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
