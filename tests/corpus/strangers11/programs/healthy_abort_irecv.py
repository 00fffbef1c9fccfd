"""Workers have a receive for a stop posted all along, which rank 0 answers at the very end."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SCALE = 1.0 if faulty else 0.01
TASKS, WIDTH, HEAD = 11, 4, 0
ASK, TASK, STOP = 1, 2, 3
NONE = -1


class StopSign:
    """A receive of its own thread, from the beginning of the job to its end."""

    def __init__(self) -> None:
        self.reason = torch.empty(1)
        self.seen = threading.Event()
        self.thread = threading.Thread(target=self.wait, daemon=True)
        self.thread.start()

    def wait(self) -> None:
        dist.recv(self.reason, src=HEAD, tag=STOP)
        self.seen.set()


class Worker:
    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.stop = StopSign()
        self.done = 0

    def ask(self) -> int:
        task = torch.empty(1, dtype=torch.int64)
        dist.send(torch.tensor([self.done]), dst=HEAD, tag=ASK)
        dist.recv(task, src=HEAD, tag=TASK)
        return int(task)

    def work(self, task: int) -> None:
        for _ in range(1 + task * 5 % 12):
            if self.stop.seen.is_set():
                return
            time.sleep(SCALE * 1.1)
        self.done += 1

    def run(self) -> None:
        while (task := self.ask()) != NONE:
            self.work(task)
        self.stop.thread.join()
        dist.all_reduce(torch.rand(WIDTH), group=self.group)


def deal(world: int) -> None:
    """Give tasks to whoever asks; then say that all is over, in the end to all at once."""
    sizes = [torch.empty(1, dtype=torch.int64) for _ in range(world)]
    asked = {peer: dist.irecv(sizes[peer], src=peer, tag=ASK) for peer in range(1, world)}
    tasks = iter(range(TASKS))
    turns = [peer for _ in range(TASKS) for peer in range(1, world)]
    for peer in turns:
        if peer not in asked:
            continue
        asked[peer].wait()
        task = next(tasks, NONE)
        dist.send(torch.tensor([task]), dst=peer, tag=TASK)
        if task == NONE:
            del asked[peer]
        else:
            asked[peer] = dist.irecv(sizes[peer], src=peer, tag=ASK)
    time.sleep(SCALE * 9)  # the report
    for peer in range(1, world):
        dist.send(torch.zeros(1), dst=peer, tag=STOP)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    workers = dist.new_group(range(1, world))
    if rank == HEAD:
        deal(world)
    else:
        Worker(rank, workers).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
