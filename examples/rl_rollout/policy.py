"""The policy: a tiny mixture of experts, and what a trainer does with the routing of a rollout.

The model is Hugging Face's Qwen3-MoE. Its weights are larger than a trained model's, so that tokens
differ, and its first layer is dense, so that layers and routed layers are not the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

VOCABULARY = 256
LAYERS, EXPERTS, TOP_K = 4, 16, 2
DENSE = (0,)


def create(seed: int = 0) -> Qwen3MoeForCausalLM:
    """Return a policy with random weights, in float32."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        norm_topk_prob=True,
        mlp_only_layers=list(DENSE),
        max_position_embeddings=512,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="eager",
    )
    return Qwen3MoeForCausalLM(config).float().eval()


def save(policy: Qwen3MoeForCausalLM, directory: Path) -> None:
    """Write a checkpoint with a tokenizer, as rollouts read it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    policy.save_pretrained(directory)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="w2", bos_token="w1", pad_token="w0"
    )
    fast.save_pretrained(directory)


def load(directory: Path) -> Qwen3MoeForCausalLM:
    """Return the policy of a checkpoint."""
    loaded = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    return loaded.eval()


def routers(policy: Qwen3MoeForCausalLM) -> Iterator[tuple[int, torch.nn.Module]]:
    """Yield the routers with the numbers of their layers."""
    for number, layer in enumerate(policy.model.layers):
        if hasattr(layer.mlp, "gate"):
            yield number, layer.mlp.gate


def chosen(policy: Qwen3MoeForCausalLM, tokens: Sequence[int]) -> NDArray[np.int64]:
    """Return the experts that the policy's own routers choose, ``[tokens, layers, top_k]``."""
    found = np.zeros((len(tokens), LAYERS, TOP_K), np.int64)

    def note(number: int) -> object:
        def hook(_module: object, _inputs: object, output: tuple[torch.Tensor, ...]) -> None:
            found[:, number] = output[-1].numpy()

        return hook

    handles = [gate.register_forward_hook(note(number)) for number, gate in routers(policy)]
    with torch.inference_mode():
        policy(torch.tensor([list(tokens)]))
    for handle in handles:
        handle.remove()
    return found


@contextlib.contextmanager
def replayed(
    policy: Qwen3MoeForCausalLM, routing: NDArray[np.generic]
) -> Iterator[list[NDArray[np.int64]]]:
    """Replay a rollout's routing: each token goes where it went when it was generated.

    Weights of experts still come from the policy's own router, so that gradients reach it.

    Args:
        policy: The policy that is trained.
        routing: ``[tokens, layers, top_k]``.

    Yields:
        What each router returned, as the forward pass goes on.
    """
    used: list[NDArray[np.int64]] = []

    def replay(number: int) -> object:
        wanted = torch.from_numpy(routing[:, number].astype(np.int64))

        def hook(
            _module: object, _inputs: object, output: tuple[torch.Tensor, ...]
        ) -> tuple[torch.Tensor, ...]:
            logits = output[0]
            weights = torch.softmax(logits.float(), dim=-1).gather(-1, wanted)
            weights = weights / weights.sum(-1, keepdim=True)
            used.append(wanted.numpy())
            return (logits, weights.to(logits.dtype), wanted)

        return hook

    handles = [gate.register_forward_hook(replay(number)) for number, gate in routers(policy)]
    try:
        yield used
    finally:
        for handle in handles:
            handle.remove()


def log_probabilities(policy: Qwen3MoeForCausalLM, tokens: Sequence[int]) -> torch.Tensor:
    """Return the logarithm of each token's probability but the first one's."""
    logits = policy(torch.tensor([list(tokens)])).logits[0, :-1].float()
    wanted = torch.tensor(list(tokens[1:]))[:, None]
    return torch.log_softmax(logits, -1).gather(-1, wanted)[:, 0]
