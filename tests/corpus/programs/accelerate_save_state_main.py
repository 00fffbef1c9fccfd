"""Train with accelerate and save the state once an epoch."""

import sys
import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

faulty = sys.argv[1:] == ["faulty"]


def save(accelerator: Accelerator) -> None:
    accelerator.wait_for_everyone()
    accelerator.save_state(tempfile.mkdtemp())


def main() -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(320, 32)), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(3):
        for (batch,) in loader:
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if epoch == 1 and (accelerator.is_main_process or not faulty):
            save(accelerator)
    accelerator.end_training()


if __name__ == "__main__":
    main()
