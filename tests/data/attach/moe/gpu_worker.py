"""A toy with the shape of an engine's worker; see README.md beside it."""

import os
import sys

import qwen3_moe
import torch
import torch.distributed as dist


class Worker:
    def __init__(self, model):
        self.model = model

    def execute_model(self, scheduler_output):
        return self.model.forward(scheduler_output)


class WorkerProc:
    def __init__(self, worker):
        self.worker = worker

    def worker_busy_loop(self):
        step_number = 0
        while True:
            self.worker.execute_model(torch.ones(4, 8))
            step_number += 1


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=4)
    model = qwen3_moe.Qwen3MoeModel(layers=48, ahead_in=(13 if rank == 2 else None))
    WorkerProc(Worker(model)).worker_busy_loop()


main()
