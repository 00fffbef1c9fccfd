"""At exit files are uploaded and all ranks meet once more; both are hooks of the interpreter."""

import atexit
import queue
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Uploader:
    """Uploads files in a thread; at exit it waits until all are through."""

    def __init__(self) -> None:
        self.files: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()
        atexit.register(self.flush)

    def _run(self) -> None:
        while True:
            name = self.files.get()
            if name.endswith(".tmp"):
                continue  # is renamed, and comes once more
            self.files.task_done()

    def flush(self) -> None:
        self.files.join()


def leave() -> None:
    """Wait for all ranks, then give the connections up."""
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    dist.init_process_group("gloo")
    atexit.register(leave)
    rank = dist.get_rank()
    uploader = Uploader()
    for step in range(15):
        dist.all_reduce(torch.randn(32))
        if step % 5 == 4:
            uploader.files.put(f"{step}.{rank}.pt")
            if faulty and rank == 1 and step == 9:
                uploader.files.put(f"{step}.{rank}.pt.tmp")
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main()
