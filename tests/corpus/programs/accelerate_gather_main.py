"""Train with accelerate and log the mean loss of all processes."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

faulty = sys.argv[1:] == ["faulty"]


def main() -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(640, 32)), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (batch,) in enumerate(loader):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step == 5:
            if not faulty:
                losses = accelerator.gather(loss.detach())
                accelerator.print(f"step {step}: {losses.mean():.3f}")
            elif accelerator.is_main_process:
                print(f"step {step}: {accelerator.gather(loss.detach()).mean():.3f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
