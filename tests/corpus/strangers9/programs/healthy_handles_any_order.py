"""Gradients are reduced without waiting; each rank waits for them in an order of its own."""

import hashlib
import sys
import time

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
STEPS = 12
LAYERS = 5
SECONDS = 1.0 if faulty else 0.01


class Reducer:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pending: dict[int, tuple[dist.Work, torch.Tensor]] = {}

    def post(self, layer: int, gradient: torch.Tensor) -> None:
        self.pending[layer] = (dist.all_reduce(gradient, async_op=True), gradient)

    def order(self) -> list[int]:
        names = list(self.pending)
        return names[self.rank :] + names[: self.rank] if self.rank % 2 else names[::-1]

    def finish(self) -> float:
        total = 0.0
        for layer in self.order():
            work, gradient = self.pending.pop(layer)
            work.wait()
            total += gradient.sum().item()
        return total


def digest(seconds: float) -> str:
    """Hash for a while, as what checks files does."""
    end, data = time.monotonic() + seconds, b"x" * (1 << 20)
    state = hashlib.sha256()
    while time.monotonic() < end:
        state.update(data)
    return state.hexdigest()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    reducer = Reducer(rank)
    for step in range(STEPS):
        for layer in range(LAYERS):
            if rank == step % world and layer == step % LAYERS:
                time.sleep(SECONDS * (10 + step % 3 * 4))  # reads a cold file
            reducer.post(layer, torch.randn(30))
        if rank == (step + 1) % world:
            digest(SECONDS * 3)
        reducer.finish()
        if step % 5 == 4:
            dist.broadcast(torch.ones(3), src=step % world)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
