"""FSDP2 on three ranks; the fourth validates what they save, and reports by the store."""

import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

faulty = sys.argv[1:] == ["faulty"]  # long, and no mistake
SECONDS = 1.0 if faulty else 0.02
EPOCHS, STEPS, WIDTH, VALIDATOR = 3, 8, 12, 3
TAKES = (9, 14, 7)


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


class Trainers:
    def __init__(self, mesh: DeviceMesh, store: dist.Store) -> None:
        self.rank, self.store, self.group = dist.get_rank(), store, mesh.get_group()
        self.model = build()
        fully_shard(self.model[0], mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def save(self, epoch: int) -> None:
        state = {name: one.full_tensor() for name, one in self.model.state_dict().items()}
        if self.rank == 0:
            path = pathlib.Path(f"epoch-{epoch}.pt")
            torch.save(state, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)

    def step(self, slow: bool) -> None:
        if slow:
            time.sleep(SECONDS * 1.5)  # a batch from a far bucket
        self.model(torch.randn(4, WIDTH)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self) -> None:
        for epoch in range(EPOCHS):
            for step in range(STEPS):
                self.step(slow=step % 4 == self.rank)
            self.save(epoch)
            if self.rank == 1 and epoch:
                verdict = self.store.get(f"loss/{epoch - 1}")
                print(f"epoch {epoch - 1}: {verdict.decode()}", flush=True)
            dist.barrier(group=self.group)


class Validator:
    """Polls for weights and never speaks to the trainers but by the store."""

    def __init__(self, store: dist.Store) -> None:
        self.store, self.model = store, build()

    def run(self) -> None:
        for epoch in range(EPOCHS):
            path = pathlib.Path(f"epoch-{epoch}.pt")
            while not path.exists():
                time.sleep(0.1)
            self.model.load_state_dict(torch.load(path))
            time.sleep(TAKES[epoch] * SECONDS)  # a validation set on a slow disk
            with torch.no_grad():
                loss = self.model(torch.randn(16, WIDTH)).square().mean()
            self.store.set(f"loss/{epoch}", f"{loss:.4f}")


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group([one for one in range(world) if one != VALIDATOR])
    if rank == VALIDATOR:
        Validator(store).run()
    else:
        mesh = DeviceMesh.from_group(group, "cpu")
        Trainers(mesh, store).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
