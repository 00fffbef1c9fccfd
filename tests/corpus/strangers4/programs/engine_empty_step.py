"""A thread of rank 0 takes requests; each step's schedule goes to the workers, and a model runs."""

import queue
import sys
import threading
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
REQUESTS, LAYERS = 12, 3


@dataclass
class Schedule:
    """What a step computes.

    Attributes:
        tokens: Of each request.
        transfers: Requests whose blocks arrive meanwhile.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    transfers: list[int] = field(default_factory=list)
    stop: bool = False


class Frontend:
    def __init__(self) -> None:
        self.requests: queue.Queue[int | None] = queue.Queue(4)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        for request in range(REQUESTS):
            self.requests.put(request)
        self.requests.put(None)

    def next(self) -> Schedule:
        request = self.requests.get()
        if request is None:
            return Schedule(stop=True)
        if request == 7:
            return Schedule(transfers=[request])  # nothing to compute, blocks to wait for
        return Schedule(tokens={request: 2 + request % 3})


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def execute(self, schedule: Schedule) -> None:
        if faulty and self.rank == 3 and not schedule.tokens:
            return  # an older version of the runner, which knows of no transfers
        hidden = torch.randn(max(1, sum(schedule.tokens.values())), 8)
        for _ in range(LAYERS):
            dist.all_reduce(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    worker, frontend = Worker(rank), Frontend() if rank == 0 else None
    while True:
        message = [frontend.next() if frontend else None]
        dist.broadcast_object_list(message, src=0)
        if message[0].stop:
            break
        worker.execute(message[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
