"""A thread of each rank writes metrics out of a queue, and is waited for at the end of an epoch."""

import json
import queue
import sys
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
EPOCHS, STEPS = 6, 5


class Writer:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: queue.Queue[dict[str, object]] = queue.Queue()
        threading.Thread(target=self.write_all, daemon=True).start()

    def write_all(self) -> None:
        with self.path.open("a") as file:
            while True:
                record = self.records.get()
                try:
                    line = json.dumps(record)
                except TypeError:
                    continue  # cannot be written as JSON
                file.write(f"{line}\n")
                self.records.task_done()

    def flush(self) -> None:
        self.records.join()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    writer = Writer(Path(tempfile.gettempdir(), f"metrics-{rank}.jsonl"))
    for epoch in range(EPOCHS):
        for step in range(STEPS):
            loss = torch.rand(1)
            dist.all_reduce(loss)
            late = faulty and rank == 3 and epoch == 4 and step == 2
            writer.records.put({"step": step, "loss": loss if late else loss.item()})
        writer.flush()
        dist.broadcast(torch.randn(12), src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
