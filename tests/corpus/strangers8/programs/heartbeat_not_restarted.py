"""A thread of each rank shares the state of its node during a phase, beside the training."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
PHASES, STEPS, BEATS = 5, 8, 6


class Heartbeat:
    """Adds up how many nodes are well, a fixed number of times in a phase."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.thread: threading.Thread | None = None
        self.seen: list[float] = []

    def beat(self) -> None:
        for _ in range(BEATS):
            well = torch.ones(1)
            dist.all_reduce(well, group=self.group)
            self.seen.append(well.item())
            time.sleep(0.02)

    def start(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self.beat, name="heartbeat")
            self.thread.start()

    def stop(self, *, forget: bool = True) -> None:
        assert self.thread
        self.thread.join()
        if forget:
            self.thread = None


class Trainer:
    def __init__(self, rank: int, heartbeat: Heartbeat) -> None:
        self.rank, self.heartbeat = rank, heartbeat
        self.weights = torch.randn(36)

    def step(self) -> None:
        gradient = torch.randn(36)
        dist.all_reduce(gradient)
        self.weights -= 0.1 * gradient

    def run(self, phase: int) -> None:
        self.heartbeat.start()
        for _ in range(STEPS):
            self.step()
        keep = faulty and self.rank == 0 and phase == 1  # "for the report of the phase"
        self.heartbeat.stop(forget=not keep)
        dist.barrier()
        if phase % 2 == 1:
            dist.broadcast(self.weights, src=0)


def main() -> None:
    dist.init_process_group("gloo")
    health = dist.new_group(range(dist.get_world_size()))
    heartbeat = Heartbeat(health)
    trainer = Trainer(dist.get_rank(), heartbeat)
    for phase in range(PHASES):
        trainer.run(phase)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
