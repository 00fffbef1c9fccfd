"""Sequence parallel groups of three; samples are fetched by callbacks of a client."""

import queue
import sys
import threading
from concurrent.futures import Future

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, LAYERS, PARTS, WIDTH = 10, 2, 3, 4


class Client:
    """Answers requests in a thread and sets the future of each."""

    def __init__(self) -> None:
        self.requests: queue.Queue[tuple[dict[str, int], Future[int]]] = queue.Queue()
        threading.Thread(target=self._run, name="client", daemon=True).start()

    def _run(self) -> None:
        while True:
            request, future = self.requests.get()
            try:
                self.answer(request, future)
            except KeyError as error:
                print(f"client: no field {error}", flush=True)

    def answer(self, request: dict[str, int], future: Future[int]) -> None:
        length = request["length"] + request["padding"]
        future.set_result(length)

    def length(self, request: dict[str, int]) -> Future[int]:
        future: Future[int] = Future()
        self.requests.put((request, future))
        return future


class Block:
    """Sums partial rows over its group, and keeps its part where rows can be cut."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def forward(self, rows: torch.Tensor, real: int) -> torch.Tensor:
        if real % PARTS == 0:
            part = torch.empty(len(rows) // PARTS, WIDTH)
            dist.reduce_scatter_tensor(part, rows, group=self.group)
            whole = torch.empty_like(rows)
            dist.all_gather_into_tensor(whole, part, group=self.group)
            return whole.tanh()
        dist.all_reduce(rows, group=self.group)
        return rows.tanh()


def request_of(rank: int, step: int) -> dict[str, int]:
    request = {"length": 12 if step % 2 else 9, "padding": 0}
    if faulty and rank == 1 and step == 6:
        request["length"] += 1  # its tokenizer adds a mark at the beginning
    if faulty and rank == 5 and step == 4:
        del request["padding"]
    return request


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([first, first + 1, first + 2]) for first in range(0, world, PARTS)]
    client, block = Client(), Block(groups[rank // PARTS])
    losses = torch.zeros(1)
    for step in range(STEPS):
        real = client.length(request_of(rank, step)).result()
        rows = torch.randn(12, WIDTH)
        for _ in range(LAYERS):
            rows = block.forward(rows, real)
        losses += rows.square().mean()
    dist.all_reduce(losses)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
