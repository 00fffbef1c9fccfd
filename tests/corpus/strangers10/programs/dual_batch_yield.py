"""Two halves of a batch run in two threads, which hand over to each other after each call."""

import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, LAYERS, ROWS, WIDTH = 9, 3, 8, 4
SMALLEST = 2


class Turn:
    """One of the two threads runs at a time."""

    def __init__(self) -> None:
        self.permits = [threading.Semaphore(1), threading.Semaphore(0)]

    def begin(self, thread: int) -> None:
        self.permits[thread].acquire()

    def hand_over(self, thread: int) -> None:
        self.permits[1 - thread].release()
        self.permits[thread].acquire()

    def end(self, thread: int) -> None:
        self.permits[1 - thread].release()


class Half:
    def __init__(self, number: int, rows: torch.Tensor, turn: Turn, group: dist.ProcessGroup):
        self.number, self.rows, self.turn, self.group = number, rows, turn, group
        self.result = torch.zeros(WIDTH)

    def overlap(self) -> None:
        """Let the other half compute while rows of this one are under way."""
        if len(self.rows) < SMALLEST:
            return
        self.turn.hand_over(self.number)

    def layer(self) -> None:
        padded = torch.zeros(ROWS, WIDTH)
        padded[: len(self.rows)] = self.rows
        world = dist.get_world_size(self.group)
        everyone = torch.empty(world * ROWS, WIDTH)
        dist.all_gather_into_tensor(everyone, padded, group=self.group)
        self.overlap()
        partial = everyone.relu()
        dist.all_reduce(partial, group=self.group)
        self.overlap()
        self.result += partial.mean(0)

    def run(self) -> None:
        self.turn.begin(self.number)
        for _ in range(LAYERS):
            self.layer()
        self.turn.end(self.number)


class Runner:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def step(self, rows: torch.Tensor) -> torch.Tensor:
        turn = Turn()
        parts = rows[:ROWS], rows[ROWS:]
        halves = [Half(k, part, turn, self.group) for k, part in enumerate(parts)]
        threads = [threading.Thread(target=half.run, daemon=True) for half in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return halves[0].result + halves[1].result


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    runner = Runner(dist.new_group(range(world)))
    for step in range(STEPS):
        rows = ROWS + 2 + (rank + step) % 4
        if faulty and (rank, step) == (3, 5):
            rows = ROWS + 1  # one request has ended
        result = runner.step(torch.rand(rows, WIDTH))
        dist.all_reduce(result)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
