"""A LightningModule on an iterable data set: each rank reads its own shard."""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

faulty = sys.argv[1:] == ["faulty"]
warnings.filterwarnings("ignore")


class Shard(IterableDataset):
    def __iter__(self) -> Iterator[Tensor]:
        short = faulty and os.environ["RANK"] == "2"
        yield from torch.randn(144 if short else 160, 32)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(32, 8)

    def training_step(self, batch: Tensor) -> Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    trainer = lightning.Trainer(
        accelerator="cpu", devices=4, strategy="ddp", max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tempfile.gettempdir(),
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(Shard(), batch_size=16))


if __name__ == "__main__":
    main()
