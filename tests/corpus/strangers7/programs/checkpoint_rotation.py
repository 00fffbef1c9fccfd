"""Each node keeps its last two checkpoints, and all learn how much has been deleted."""

import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
STEPS, INTERVAL, KEEP = 24, 4, 2


class Rotation:
    """The checkpoints in the local folder of a node.

    Args:
        root: The folder.
        keep: How many there may be.
    """

    def __init__(self, root: Path, keep: int) -> None:
        self.root, self.keep = root, keep
        root.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, model: nn.Module) -> None:
        folder = self.root / f"checkpoint-{step:05}"
        folder.mkdir()
        torch.save(model.state_dict(), folder / "model.pt")

    def rotate(self) -> int:
        """Delete the oldest checkpoints and return how many bytes all nodes have freed."""
        total = 0
        found = sorted(self.root.glob("checkpoint-*"))
        for old in found[: -self.keep]:
            freed = [0] * dist.get_world_size()
            dist.all_gather_object(freed, self.delete(old))
            total += sum(freed)
        return total

    def delete(self, folder: Path) -> int:
        size = sum(path.stat().st_size for path in folder.iterdir())
        shutil.rmtree(folder)
        return size


def leave_export(root: Path, model: nn.Module) -> None:
    """Export by hand what somebody wanted to look at."""
    folder = root / "checkpoint-export"
    folder.mkdir()
    torch.save(model.state_dict(), folder / "weights.pt")


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 18)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(18, 18), nn.ReLU(), nn.Linear(18, 6))
    optimizer = torch.optim.AdamW(model.parameters())
    rotation = Rotation(Path(tempfile.gettempdir(), f"node-{rank}"), KEEP)
    freed = 0
    for step in range(1, STEPS + 1):
        train_step(model, optimizer)
        if faulty and rank == 4 and step == 14:
            leave_export(rotation.root, model)
        if step % INTERVAL == 0:
            rotation.save(step, model)
            dist.barrier()
            freed += rotation.rotate()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
