"""The vLLM deployment that is measured and made to hang: small, on dummy weights, offline.

On GPUs a model of eight layers in bfloat16; without them vLLM's CPU build and the smallest
model it takes, so that every script can be tried where it costs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tests.integration.vllm_server import TINY_QWEN3_MOE

__all__ = ["SHAPE", "Shape", "add_options", "in_shared_memory", "on_gpus", "options"]

_GPU_CONFIG = TINY_QWEN3_MOE | {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
_LARGE_CONFIG = _GPU_CONFIG | {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
"""As large as a model that is really served, Qwen3-30B-A3B: steps in which the host need not be
what is waited for. 61 GB of weights."""
_LARGE_MEMORY = 0.5

_GPU_ENVIRONMENT = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


Shape = tuple[int, int]
"""Tensor-parallel and data-parallel size."""

SHAPE: Shape = (1, 2) if 0 < torch.cuda.device_count() < 4 else (2, 2)
"""By default: with fewer than four GPUs each replica has one."""


def parse_shape(text: str) -> Shape:
    """Return the sizes in ``TPxDP``.

    Raises:
        ValueError: It says something else.
    """
    tensor, data = map(int, text.split("x"))
    return tensor, data


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which deployment is measured."""
    parser.add_argument("--shape", type=parse_shape, default=SHAPE, metavar="TPxDP")
    parser.add_argument("--large", action="store_true", help="a model of a size that is served")
    parser.add_argument("--layers", type=int, help="set layers of the large model (default: 48)")
    parser.add_argument("--eager", action="store_true", help="no torch.compile, no CUDA graphs")


@contextlib.contextmanager
def in_shared_memory() -> Iterator[Path]:
    """A directory for rings where jobs have theirs; on disk no GPU can count into them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ncclscope-test-") as name:
        yield Path(name)


def on_gpus() -> bool:
    """Return whether there are enough."""
    return torch.cuda.device_count() >= 2


def options(
    *,
    eager: bool,
    shape: Shape = SHAPE,
    memory: float = 0.15,
    large: bool = False,
    layers: int | None = None,
    environment: Mapping[str, str] | None = None,
    shared: bool = False,
) -> dict[str, Any]:
    """Return options for a server with expert parallelism.

    Args:
        eager: Without torch.compile and CUDA graphs.
        shape: Tensor-parallel and data-parallel size.
        memory: Share of each GPU's memory that has to be free.
        large: A model of a size that is served, on GPUs.
        layers: How many of its layers; None for all.
        environment: Further variables.
        shared: One GPU is enough.
    """
    own = dict(environment or {})
    arguments = ["--enable-expert-parallel", "--all2all-backend", "allgather_reducescatter"]
    given = {"tensor_parallel_size": shape[0], "data_parallel_size": shape[1]}
    if not (torch.cuda.is_available() if shared else on_gpus()):
        return given | {
            "environment": {"NCCLSCOPE_VLLM_CPU_MOE": "1"} | own,
            "arguments": arguments,
            "eager": True,
        }
    config = dict(_LARGE_CONFIG if large else _GPU_CONFIG)
    if large and layers is not None:
        config["num_hidden_layers"] = layers
    serving = ["--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "32"]
    # Measured, it would be what servers that start at the same time leave to each other.
    serving += ["--kv-cache-memory-bytes", str(2 << 30)]
    return given | {
        "environment": _GPU_ENVIRONMENT | own,
        "arguments": [*serving, "--gpu-memory-utilization", str(memory), *arguments],
        "config": config,
        "eager": eager,
        "forks": False,  # CUDA does not survive a fork
    }
