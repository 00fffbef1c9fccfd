"""Pipeline parallel engine: the last stage returns tokens, the first one runs ahead of them."""

import sys
from collections import deque

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
WIDTH, DEPTH, LONGEST, REQUESTS = 8, 3, 9, 6
STOP = 7
END = -1.0


class Scheduler:
    """Two requests at a time; the next token of one is asked for while its last one comes."""

    def __init__(self, requests: int) -> None:
        self.waiting = deque(range(requests))
        self.running: deque[int] = deque()
        self.asked = [0] * requests
        self.flying: deque[tuple[int, torch.Tensor, dist.Work]] = deque()
        self.texts: list[list[int]] = [[] for _ in range(requests)]

    def next(self) -> int | None:
        while len(self.running) < 2 and self.waiting:
            self.running.append(self.waiting.popleft())
        if not self.running:
            return None
        request = self.running.popleft()
        self.asked[request] += 1
        if self.asked[request] < LONGEST:
            self.running.append(request)
        return request

    def land(self) -> None:
        request, token, work = self.flying.popleft()
        work.wait()
        self.texts[request].append(int(token))
        if int(token) == STOP and request in self.running:
            self.running.remove(request)

    def run(self, world: int) -> None:
        while (request := self.next()) is not None:
            hidden = torch.rand(WIDTH)
            hidden[0] = request
            dist.send(hidden, dst=1)
            token = torch.empty(1, dtype=torch.int64)
            work = dist.irecv(token, src=world - 1, tag=request)
            self.flying.append((request, token, work))
            if len(self.flying) == DEPTH:
                self.land()
        while self.flying:
            self.land()
        dist.send(torch.full((WIDTH,), END), dst=1)


class Sampler:
    def __init__(self) -> None:
        self.made = [0] * REQUESTS
        self.stopped: set[int] = set()

    def token(self, request: int) -> int:
        self.made[request] += 1
        if faulty and request == 3 and self.made[request] == 5:
            return STOP  # the text is at its end
        return 1 + self.made[request] % 6

    def answer(self, request: int) -> None:
        if request in self.stopped:
            return
        token = self.token(request)
        if token == STOP:
            self.stopped.add(request)
        dist.send(torch.tensor([token]), dst=0, tag=request)


def stage(rank: int, last: bool) -> None:
    sampler, hidden = Sampler(), torch.empty(WIDTH)
    while True:
        dist.recv(hidden, src=rank - 1)
        if not last:
            dist.send(hidden, dst=rank + 1)
        if hidden[0] == END:
            return
        if last:
            sampler.answer(int(hidden[0]))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        Scheduler(REQUESTS).run(world)
    else:
        stage(rank, rank == world - 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
