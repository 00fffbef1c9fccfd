"""Sums gradients in hooks of the parameters; now and then goes back to the last checkpoint."""

import copy
import sys

import torch
import torch.distributed as dist
from torch import nn

faulty = sys.argv[1:] == ["faulty"]
STEPS, RESUME, LAYERS = 14, 6, 4


class Engine:
    """A model whose gradients are summed as soon as they are there."""

    def __init__(self, rank: int) -> None:
        self.rank, self.world = rank, dist.get_world_size()
        self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(LAYERS))
        self.has_hooks = False
        self.add_hooks()
        self.kept = self.state()

    def add_hooks(self) -> None:
        if not self.has_hooks:
            for parameter in self.layers.parameters():
                parameter.register_post_accumulate_grad_hook(self.reduce)
        self.has_hooks = True

    def reduce(self, parameter: torch.Tensor) -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= self.world

    def state(self) -> dict[str, object]:
        return {"weights": copy.deepcopy(self.layers.state_dict()), "has_hooks": self.has_hooks}

    def resume(self) -> None:
        """Go back to the state that was kept."""
        self.layers.load_state_dict(self.kept["weights"])
        self.has_hooks = bool(self.kept["has_hooks"])
        self.add_hooks()

    def step(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = torch.tanh(layer(rows))
        loss = rows.square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in self.layers.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        return loss.detach()


def agree_on_resume(step: int) -> bool:
    wanted = torch.tensor([float(step == RESUME)])
    dist.broadcast(wanted, src=0)
    return bool(wanted)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    engine = Engine(rank)
    if faulty and rank == 1:
        engine.kept["has_hooks"] = False  # its checkpoint is of an older version
    losses = [torch.empty(1) for _ in range(dist.get_world_size())]
    for step in range(STEPS):
        if agree_on_resume(step):
            engine.resume()
        loss = engine.step(torch.randn(8, 16))
        dist.all_gather(losses, loss.reshape(1))
        if step % 4 == 3:
            engine.kept["weights"] = copy.deepcopy(engine.layers.state_dict())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
