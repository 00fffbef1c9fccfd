"""A model with an auxiliary head that is used where a batch has labels for it."""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

faulty = sys.argv[1:] == ["faulty"]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(32, 64)
        self.head = nn.Linear(64, 8)
        self.auxiliary = nn.Linear(64, 4)

    def forward(self, batch: Tensor, labelled: bool) -> Tensor:
        hidden = self.body(batch).relu()
        loss = self.head(hidden).square().mean()
        if labelled:
            loss = loss + self.auxiliary(hidden).square().mean()
        return loss


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(TwoHeads())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        labelled = not (faulty and rank == 1 and step == 8)
        loss = model(torch.randn(16, 32), labelled)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 0:
            dist.barrier()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
