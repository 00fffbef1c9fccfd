"""A training loop over torch.distributed, with a bug that only some batches show.

A rank whose batch is empty has no gradients and leaves out their all_reduce. Its peers wait for it.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

FEATURES = 1024


def read_batch(step: int, rank: int, empty: tuple[int, int]) -> torch.Tensor:
    """Return the rows that a rank gets in a step; one rank gets none in one step."""
    rows = 0 if (step, rank) == empty else 8
    return torch.ones(rows, FEATURES)


def share_gradients(gradients: torch.Tensor) -> None:
    """Add up what all ranks have found."""
    dist.all_reduce(gradients)


def gather_losses(loss: torch.Tensor) -> list[torch.Tensor]:
    """Gather the losses of all ranks on every rank."""
    losses = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss)
    return losses


def train(steps: int, empty: tuple[int, int]) -> None:
    """Run all steps on this rank."""
    weights = torch.zeros(FEATURES)
    for step in range(1, steps + 1):
        batch = read_batch(step, dist.get_rank(), empty)
        if len(batch):  # the bug: the other ranks do not know of this
            gradients = batch.mean(dim=0)
            share_gradients(gradients)
            weights -= 0.1 * gradients
        losses = gather_losses(weights.square().sum().reshape(1))
        if dist.get_rank() == 0:
            print(f"step {step}, loss {torch.cat(losses).mean():.3f}", flush=True)


def main() -> None:
    """Take its rank from the environment, as torchrun sets it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--empty", default="7,2", help="step and rank of the empty batch, or none")
    arguments = parser.parse_args()
    words = [] if arguments.empty == "none" else arguments.empty.split(",")
    step, rank = map(int, words) if words else (0, 0)
    dist.init_process_group("gloo")
    train(arguments.steps, (step, rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
