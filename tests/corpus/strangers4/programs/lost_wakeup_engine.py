"""A thread of each rank prepares the inputs of a step; the main thread sleeps until it is done."""

import sys
import threading
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]


class Preparer:
    """Prepares inputs in a thread and wakes up the main thread."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.condition = threading.Condition()
        self.asked, self.inputs = threading.Semaphore(0), None
        self.step = 0
        threading.Thread(target=self._run, name="preparer", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.asked.acquire()
            inputs = torch.randn(4, 8)
            with self.condition:
                self.inputs = inputs
                self.condition.notify()

    def take(self) -> torch.Tensor:
        self.step += 1
        self.asked.release()
        if faulty and self.rank == 0 and self.step == 10:
            time.sleep(0.3)  # the tokenizer of a long prompt; meanwhile the inputs are ready
            with self.condition:
                self.condition.wait()  # nobody notifies again
        with self.condition:
            self.condition.wait_for(lambda: self.inputs is not None)
            inputs, self.inputs = self.inputs, None
        return inputs


def main() -> None:
    dist.init_process_group("gloo")
    preparer = Preparer(dist.get_rank())
    for _ in range(20):
        inputs = preparer.take()
        for _ in range(3):
            dist.all_reduce(inputs)
        tokens = torch.zeros(4, dtype=torch.int64)
        dist.broadcast(tokens, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
