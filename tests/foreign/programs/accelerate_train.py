"""accelerate: accumulated gradients, metrics of an uneven last batch, work of the main process."""

import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.foreign.programs.pace import pause

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
rank = accelerator.process_index
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
training = DataLoader(TensorDataset(torch.randn(330, 32)), batch_size=8, shuffle=True)
testing = DataLoader(TensorDataset(torch.randn(101, 32)), batch_size=8)
model, optimizer, training, testing = accelerator.prepare(model, optimizer, training, testing)

for epoch in range(2):
    model.train()
    for step, (batch,) in enumerate(training):
        pause(rank, step)
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    seen = 0
    for (batch,) in testing:
        with torch.no_grad():
            seen += len(accelerator.gather_for_metrics(model(batch)))
    assert seen == 101, seen
    with accelerator.main_process_first():
        time.sleep(0.5 if accelerator.is_main_process else 0)
    accelerator.print(f"epoch {epoch}: {accelerator.reduce(loss.detach(), 'mean'):.3f}")

accelerator.wait_for_everyone()
accelerator.end_training()
