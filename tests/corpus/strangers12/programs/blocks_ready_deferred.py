"""Four stages of a decoder; the third one's cache blocks go back to the first by threads."""

import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, WIDTH, BLOCK = 16, 16, 64
READER, KEEPER = 0, 2


class Sender:
    """Sends the blocks of a step once the main thread has said that they are written."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.changed, self.ready = group, threading.Condition(), -1
        threading.Thread(target=self.run, name="blocks", daemon=True).start()

    def run(self) -> None:
        for step in range(STEPS):
            with self.changed:
                self.changed.wait_for(lambda step=step: self.ready >= step)
            dist.send(torch.full((BLOCK,), float(step)), dst=READER, group=self.group)

    def written(self, step: int) -> None:
        with self.changed:
            self.ready = step
            self.changed.notify_all()


class Receiver:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.blocks = group, torch.zeros(BLOCK)

    def fetch(self) -> None:
        thread = threading.Thread(target=self.receive, name="blocks")
        thread.start()
        thread.join()

    def receive(self) -> None:
        dist.recv(self.blocks, src=KEEPER, group=self.group)


class Stage:
    def __init__(self, rank: int, world: int, group: dist.ProcessGroup) -> None:
        self.rank, self.world, self.deferred = rank, world, None
        self.sender = Sender(group) if rank == KEEPER else None
        self.receiver = Receiver(group) if rank == READER else None

    def forward(self, step: int) -> None:
        tokens = torch.rand(WIDTH)
        if self.receiver is not None and step > 0:
            self.receiver.fetch()  # of the step before
        if self.rank > 0:
            dist.recv(tokens, src=self.rank - 1)
        if self.sender is not None:
            if self.deferred is not None:
                self.sender.written(self.deferred)
            is_full = faulty and step == 10  # the copy is left to the next step
            self.deferred = step if is_full else None
            if not is_full:
                self.sender.written(step)
        if self.rank + 1 < self.world:
            dist.send(tokens.tanh(), dst=self.rank + 1)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world, dist.new_group([READER, KEEPER]))
    for step in range(STEPS):
        stage.forward(step)
    if stage.receiver is not None:
        stage.receiver.fetch()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
