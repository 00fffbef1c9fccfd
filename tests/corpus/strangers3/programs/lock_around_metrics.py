"""A thread publishes metrics of all ranks; a lock keeps it from reading half a step."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Metrics:
    """Sums counters over all ranks in a thread, when it is asked to."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock, self.group = lock, dist.new_group()
        self.counters = torch.zeros(4)
        self.due, self.published = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._publish, daemon=True).start()

    def _publish(self) -> None:
        while True:
            self.due.acquire()
            with self.lock:
                dist.all_reduce(self.counters.clone(), group=self.group)
            self.published.release()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    lock = threading.Lock()
    metrics = Metrics(lock)
    for step in range(20):
        early = faulty and rank == 1 and step == 13
        if early:
            metrics.due.release()  # before the step instead of after it
            time.sleep(0.3)
        with lock:
            dist.all_reduce(torch.randn(16))
            metrics.counters += 1
        if not early:
            metrics.due.release()
        metrics.published.acquire()
        dist.broadcast(torch.ones(2), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
