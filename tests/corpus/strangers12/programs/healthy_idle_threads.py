"""Each rank has threads that wait for what seldom comes: commands, files to write, a last key."""

import queue
import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.01
STEPS, WIDTH = 40, 16
COMMANDER, SLOW = 2, 1


class Commands:
    """A thread receives commands of the commander: there is one, at the end."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.thread = threading.Thread(target=self.run, name="commands")
        if rank != COMMANDER:
            self.thread.start()

    def run(self) -> None:
        dist.recv(torch.zeros(1, dtype=torch.int64), src=COMMANDER, group=self.group)

    def end(self) -> None:
        if self.rank != COMMANDER:
            self.thread.join()
            return
        for rank in range(dist.get_world_size()):
            if rank != COMMANDER:
                dist.send(torch.tensor([1]), dst=rank, group=self.group)


class Files:
    """A consumer of a queue: only two saves come, and then the end."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[torch.Tensor | None] = queue.Queue()
        self.thread = threading.Thread(target=self.run, name="files")
        self.thread.start()

    def run(self) -> None:
        while (weights := self.jobs.get()) is not None:
            torch.save(weights, f"weights-{threading.get_native_id()}.pt")


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    commands = Commands(rank, dist.new_group(list(range(world))))
    files, weights = Files(), torch.zeros(WIDTH)
    for step in range(STEPS):
        if rank == SLOW and step % 10 == 4:
            time.sleep(16 * SECONDS)  # a tokenizer is downloaded
        gradient = torch.rand(WIDTH)
        dist.all_reduce(gradient)
        weights -= 0.01 * gradient
        if rank == 0 and step in (8, 30):
            files.jobs.put(weights.clone())
        time.sleep(1.5 * SECONDS)
    files.jobs.put(None)
    files.thread.join()
    commands.end()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
