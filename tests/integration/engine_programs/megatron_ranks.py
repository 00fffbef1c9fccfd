"""Megatron-core's schedules with tensor and pipeline parallelism, of sizes TP and PP.

FAULT may be one of these, in the fourth step:

- skipped_reduce: rank 1 leaves out the all_reduce of its tensor-parallel layer, once.
- wrong_order: stage 1 waits for a gradient before it has sent the activations that it is for.
- fewer_microbatches: stage 1 runs one microbatch fewer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn

from tests.integration.c10d_ranks import join, main

TP, PP = int(os.environ["TP"]), int(os.environ["PP"])
FAULT = os.environ.get("FAULT")
STEPS, FAULTY_STEP, MICROBATCHES = 6, 4, 4


class Stage(nn.Module):
    """A layer whose output is the sum over the tensor-parallel group."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        self.net = nn.Linear(16, 16)
        self.inputs: Tensor | None = None
        self.skips = False

    def set_input_tensor(self, inputs: Any) -> None:
        self.inputs = inputs[0] if isinstance(inputs, list) else inputs

    def forward(self, batch: Tensor) -> Tensor:
        output = self.net(batch if self.inputs is None else self.inputs)
        if self.skips:
            self.skips = False
            return output
        return reduce_from_tensor_model_parallel_region(output)


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
    zeros, empty = torch.zeros, torch.empty
    torch.zeros = lambda *size, device=None, **options: zeros(*size, device="cpu", **options)
    torch.empty = lambda *size, device=None, **options: empty(*size, device="cpu", **options)
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda: None


def receive_first(self: Any, output: Tensor, is_last_stage: bool) -> None:
    self.recv_backward([(8, 4, 16)], is_last_stage)


def train(rank: int) -> None:
    place_on_cpu()
    join()
    parallel_state.initialize_model_parallel(TP, PP)
    config = TransformerConfig(
        num_layers=PP, hidden_size=16, num_attention_heads=TP,
        tensor_model_parallel_size=TP, pipeline_model_parallel_size=PP,
        pipeline_dtype=torch.float32,
    )  # fmt: skip
    model = Stage(config)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    schedule = get_forward_backward_func()
    for step in range(1, STEPS + 1):
        faulty = step == FAULTY_STEP
        model.skips = faulty and FAULT == "skipped_reduce" and rank == 1
        if faulty and FAULT == "wrong_order" and stage == 1:
            P2PCommunicator.send_forward = receive_first
        fewer = faulty and FAULT == "fewer_microbatches" and stage == 1
        schedule(
            forward_step_func=forward_step, data_iterator=endless(), model=[model],
            num_microbatches=MICROBATCHES - fewer, seq_length=8, micro_batch_size=4,
            forward_only=False,
        )  # fmt: skip
    schedule(
        forward_step_func=forward_step, data_iterator=endless(), model=[model],
        num_microbatches=MICROBATCHES, seq_length=8, micro_batch_size=4, forward_only=True,
    )  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(globals())
