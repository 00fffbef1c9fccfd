"""Each rank saves its shard; after a restart all look for the newest checkpoint they can read."""

import pickle
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
STEPS, INTERVAL, RESTART = 12, 3, 8


class Checkpoints:
    """The shards of one rank, in a folder of each step."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.root = Path(tempfile.gettempdir(), "checkpoints")

    def path(self, step: int) -> Path:
        return self.root / f"step-{step:04}" / f"shard-{self.rank}.pt"

    def save(self, step: int, weights: torch.Tensor) -> None:
        path = self.path(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"step": step, "weights": weights}, path)
        dist.barrier()

    def steps(self) -> list[int]:
        """Return the steps of which there is a checkpoint, the newest first."""
        found = [int(path.name.split("-")[1]) for path in self.root.iterdir()]
        return sorted(found, reverse=True)

    def resume(self) -> dict[str, object]:
        for step in self.steps():
            state = self.read(step)
            dist.barrier()  # everybody has read, so that none is deleted too early
            if state:
                return state
        raise SystemExit("there is no checkpoint")

    def read(self, step: int) -> dict[str, object]:
        try:
            return torch.load(self.path(step))
        except (RuntimeError, EOFError, pickle.UnpicklingError):
            print(f"rank {self.rank}: the shard of step {step} is damaged", file=sys.stderr)
            return {}


def damage(path: Path) -> None:
    """Cut a file, as a disk does that was full when it was written."""
    path.write_bytes(path.read_bytes()[:200])


def train_step(weights: torch.Tensor) -> None:
    gradients = list(torch.randn(dist.get_world_size(), 20))
    own = torch.empty(20)
    dist.reduce_scatter(own, gradients)
    weights -= 0.01 * own
    norm = own.square().sum().reshape(1)
    dist.all_reduce(norm)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checkpoints, weights = Checkpoints(rank), torch.zeros(20)
    step, restarted = 0, False
    while step < STEPS:
        train_step(weights)
        step += 1
        if step % INTERVAL == 0:
            checkpoints.save(step, weights)
        if step == RESTART and not restarted:
            restarted = True
            if faulty and rank == 3:
                damage(checkpoints.path(6))
            state = checkpoints.resume()
            step, weights = state["step"], state["weights"]
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
