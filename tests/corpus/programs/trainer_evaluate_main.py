"""The Trainer of transformers with a callback that evaluates the model."""

import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

faulty = sys.argv[1:] == ["faulty"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(32, 8)

    def forward(self, values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output = self.net(values)
        return {"loss": (output - labels).square().mean(), "logits": output}


class Evaluate(TrainerCallback):
    def on_step_end(self, arguments: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 4 and (state.is_world_process_zero or not faulty):
            score = torch.tensor([float(dist.get_rank())])
            parts = [torch.empty(1) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, score)


def main() -> None:
    data = [{"values": torch.randn(32), "labels": torch.zeros(8)} for _ in range(320)]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=8, report_to=[],
        per_device_train_batch_size=4, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(Model(), arguments, train_dataset=data, callbacks=[Evaluate()]).train()


if __name__ == "__main__":
    main()
