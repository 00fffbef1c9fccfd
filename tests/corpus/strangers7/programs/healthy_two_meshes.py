"""A teacher and a student on three ranks each: unequal numbers of calls, a meeting now and then."""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
MEETINGS = 6 if faulty else 2
UNIT = 1.0 if faulty else 0.01
TEACHER_STEPS, STUDENT_STEPS = 4, 30
PAUSES = [3.0, 14.0, 2.0, 16.0, 12.0, 15.0]


class Teacher:
    """Few steps, each with long sums; one of its ranks in turn reads a shard of logits."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group

    def work(self, number: int) -> torch.Tensor:
        logits = torch.zeros(24)
        for step in range(TEACHER_STEPS):
            if self.rank == number % 3 and step == 1:
                time.sleep(UNIT * PAUSES[number])  # the shard comes from far away
            dist.all_reduce(logits, group=self.group)
            parts = [torch.empty(24) for _ in range(3)]
            dist.all_gather(parts, torch.randn(24), group=self.group)
            logits = torch.stack(parts).mean(0)
        return logits


class Student:
    """Many steps; one reduce and one broadcast in each third one."""

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self.rank, self.group = rank, group
        self.weights = torch.zeros(24)

    def work(self, number: int) -> torch.Tensor:
        for step in range(STUDENT_STEPS + 5 * number):
            time.sleep(UNIT * 0.05)
            gradient = torch.randn(24)
            dist.all_reduce(gradient, group=self.group)
            self.weights -= 0.01 * gradient
            if step % 3 == 2:
                dist.reduce(gradient, dst=3, group=self.group)
                dist.broadcast(self.weights, src=3, group=self.group)
        return self.weights


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("role", "replica"))
    replica, pair = mesh.get_group("replica"), mesh.get_group("role")
    worker = Teacher(rank, replica) if rank < 3 else Student(rank, replica)
    for number in range(MEETINGS):
        result = worker.work(number)
        dist.broadcast(result, src=rank % 3, group=pair)  # logits go to the student
        agreed = torch.ones(1)
        dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
