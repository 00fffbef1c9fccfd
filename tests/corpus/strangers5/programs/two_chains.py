"""Two chains of three ranks: the first reads records, the second cleans them, the third writes."""

import sys

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
RECORDS = 20


def read(after: int, flush: bool) -> None:
    for number in range(RECORDS):
        dist.send(torch.full((8,), float(number)), dst=after)
    if flush:
        dist.send(torch.zeros(8), dst=after)  # what is left in the buffer, though nothing is


def clean(before: int, after: int, drop: int | None) -> None:
    for number in range(RECORDS):
        record = torch.empty(8)
        dist.recv(record, src=before)
        if number == drop:
            continue  # it has been seen before
        dist.send(record, dst=after)


def write(before: int) -> list[float]:
    written = []
    for _ in range(RECORDS):
        record = torch.empty(8)
        dist.recv(record, src=before)
        written.append(record[0].item())
    return written


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for round_ in range(3):
        last = faulty and round_ == 2
        if rank % 3 == 0:
            read(rank + 1, flush=last and rank == 3)
        elif rank % 3 == 1:
            clean(rank - 1, rank + 1, drop=13 if last and rank == 1 else None)
        else:
            write(rank - 1)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
