"""A thread reports now and then; weights and statistics have a lock each."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class State:
    def __init__(self) -> None:
        self.weights_lock, self.statistics_lock = threading.Lock(), threading.Lock()
        self.weights, self.count = torch.zeros(16), 0
        self.asked = threading.Event()

    def update(self, gradient: torch.Tensor) -> None:
        with self.weights_lock:
            self.weights -= 0.1 * gradient
            time.sleep(0.02)
            with self.statistics_lock:
                self.count += 1

    def report(self) -> str:
        with self.weights_lock, self.statistics_lock:
            return f"{self.count} {self.weights.norm():.3f}"

    def report_verbosely(self) -> str:
        with self.statistics_lock:
            count = self.count
            time.sleep(0.2)
            with self.weights_lock:
                return f"{count} {self.weights.tolist()}"

    def watch(self, verbose: bool) -> None:
        while self.asked.wait():
            self.asked.clear()
            if verbose:
                self.report_verbosely()
            else:
                self.report()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = State()
    verbose = faulty and rank == 1
    threading.Thread(target=state.watch, args=(verbose,), daemon=True).start()
    for step in range(15):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        if step % 5 == 4:
            state.asked.set()
            time.sleep(0.1)
        state.update(gradient)
        dist.broadcast(state.weights, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
