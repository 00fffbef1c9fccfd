"""Four pipeline stages with Megatron-core's 1F1B schedule."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

faulty = sys.argv[1:] == ["faulty"]


class Stage(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        self.net = nn.Linear(16, 16)
        self.inputs: Tensor | None = None

    def set_input_tensor(self, inputs: Any) -> None:
        self.inputs = inputs[0] if isinstance(inputs, list) else inputs

    def forward(self, batch: Tensor) -> Tensor:
        return self.net(batch if self.inputs is None else self.inputs)


def loss_of(output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = output.square().mean()
    return loss, {"loss": loss.detach()}


def forward_step(batches: Iterator[Tensor], model: nn.Module) -> tuple[Tensor, Any]:
    return model(next(batches)), partial(loss_of)


def endless() -> Iterator[Tensor]:
    while True:
        yield torch.randn(8, 4, 16)


def place_on_cpu() -> None:
    """Give the schedules, which ask for CUDA devices by name, the CPU."""
    zeros = torch.zeros
    torch.zeros = lambda *size, device=None, **options: zeros(*size, device="cpu", **options)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda: None


def main() -> None:
    place_on_cpu()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=4)
    config = TransformerConfig(
        num_layers=4, hidden_size=16, num_attention_heads=1,
        pipeline_model_parallel_size=4, pipeline_dtype=torch.float32,
    )  # fmt: skip
    model = Stage(config)
    schedule = get_forward_backward_func()
    for step in range(4):
        fewer = faulty and dist.get_rank() == 1 and step == 2
        schedule(
            forward_step_func=forward_step, data_iterator=endless(), model=[model],
            num_microbatches=5 if fewer else 6, seq_length=8, micro_batch_size=4,
            forward_only=False,
        )  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
