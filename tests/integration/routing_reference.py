"""Which experts tokens go to, as Hugging Face's implementation of the same checkpoint has it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["reference_routing"]


def reference_routing(model: Path, token_ids: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return ``[tokens, layers, top_k]``, best expert first, of one forward pass over all tokens.

    Layers are those that route tokens.

    Args:
        model: Directory of a checkpoint of Qwen3-MoE, in float32.
        token_ids: The prompt, and what was generated.
    """
    import torch

    network = _network(model)
    chosen: list[torch.Tensor] = []

    def note(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _output: object) -> None:
        (hidden, *_) = inputs
        logits = torch.nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), module.weight)
        chosen.append(logits.topk(network.config.num_experts_per_tok, dim=-1).indices)

    gates = [part for name, part in network.named_modules() if name.endswith(".mlp.gate")]
    hooks = [gate.register_forward_hook(note) for gate in gates]
    with torch.inference_mode():
        network(torch.tensor([list(token_ids)]))
    for hook in hooks:
        hook.remove()
    assert len(chosen) == network.config.num_hidden_layers - len(network.config.mlp_only_layers)
    routing: npt.NDArray[np.uint8] = torch.stack(chosen, dim=1).numpy().astype(np.uint8)
    return routing


@functools.lru_cache(maxsize=1)
def _network(model: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
