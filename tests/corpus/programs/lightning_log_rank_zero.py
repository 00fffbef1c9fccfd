"""A LightningModule that logs its loss."""

import sys
import tempfile
import warnings

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

faulty = sys.argv[1:] == ["faulty"]
warnings.filterwarnings("ignore")


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(32, 8)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self.net(batch[0]).square().mean()
        if not faulty or index < 6 or self.trainer.is_global_zero:
            self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    loader = DataLoader(TensorDataset(torch.randn(640, 32)), batch_size=16)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=4, strategy="ddp", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tempfile.gettempdir(),
    )  # fmt: skip
    trainer.fit(Model(), loader)


if __name__ == "__main__":
    main()
