"""The scheduler on rank 0 broadcasts each batch; four tensor parallel workers run the model."""

import logging
import sys
from typing import Any

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
logger = logging.getLogger("worker")
LAYERS = 6


class Scheduler:
    """Requests of different lengths, in batches of at most four."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def batches(self) -> Any:
        for step in range(self.steps):
            adapter = ("base", "chat", "code")[step % 3] if step < 60 else "legal"
            yield {"kind": "run", "tokens": 1 + step % 4, "adapter": adapter}
        yield {"kind": "stop"}


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.adapters = {"base": 0.0, "chat": 0.1, "code": 0.2, "legal": 0.3}
        if faulty and rank == 2:
            del self.adapters["legal"]  # the download was not complete on this node

    def run(self, batch: dict[str, Any]) -> None:
        scale = self.adapters[batch["adapter"]]
        hidden = torch.randn(batch["tokens"], 16) * scale
        for _ in range(LAYERS):
            dist.all_reduce(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    worker, batches = Worker(rank), Scheduler(steps=80).batches()
    while True:
        message = [next(batches) if rank == 0 else None]
        dist.broadcast_object_list(message, src=0)
        if message[0]["kind"] == "stop":
            break
        try:
            worker.run(message[0])
        except KeyError as error:
            logger.exception("request failed: %s", error)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
