"""A tiny mixture of experts with weights of its own, the same for every number of workers.

vLLM's dummy weights are drawn shard by shard, so that one worker and two have different models.
Here a checkpoint is written from a seed, in the names of Qwen3-MoE, and every server loads that.
The weights are larger than a trained model's, so that the most likely token is far ahead of the
next one: sums that differ in their last bits, as those of another number of ranks, give the same.

    python -m tests.integration.tiny_moe DIRECTORY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SCALE = 0.25
"""Standard deviation of the weights; a trained model of this width has a tenth of it."""


def write_checkpoint(directory: Path, config: Mapping[str, Any], seed: int = 0) -> None:
    """Write ``config.json`` and ``model.safetensors`` into an existing directory."""
    from safetensors.numpy import save_file  # vLLM requires it; other tests do without

    (directory / "config.json").write_text(json.dumps(dict(config), indent=2))
    save_file(
        dict(_weights(config, np.random.default_rng(seed))),
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )


def write_adapter(directory: Path, config: Mapping[str, Any], rank: int = 8) -> None:
    """Write a LoRA adapter of the first layer's queries, which changes nothing."""
    from safetensors.numpy import save_file

    directory.mkdir()
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    queries = "base_model.model.model.layers.0.self_attn.q_proj"
    wide = config["num_attention_heads"] * config["head_dim"]
    save_file(
        {
            f"{queries}.lora_A.weight": np.zeros((rank, config["hidden_size"]), np.float32),
            f"{queries}.lora_B.weight": np.zeros((wide, rank), np.float32),
        },
        directory / "adapter_model.safetensors",
    )


def write_tokenizer(directory: Path, words: int) -> None:
    """Write a tokenizer whose words are ``w0``, ``w1`` and so on, and a template for chats."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Replace("w", " w")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2")
    fast.chat_template = "{{ messages[0].content }}"
    fast.save_pretrained(directory)


def _weights(
    config: Mapping[str, Any], chosen: np.random.Generator
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    inner = config["moe_intermediate_size"]

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (SCALE * chosen.standard_normal((rows, columns))).astype(np.float32)

    def ones(size: int) -> npt.NDArray[np.float32]:
        return np.ones(size, np.float32)

    yield "model.embed_tokens.weight", matrix(config["vocab_size"], hidden)
    yield "lm_head.weight", matrix(config["vocab_size"], hidden)
    yield "model.norm.weight", ones(hidden)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", ones(hidden)
        yield f"{layer}.post_attention_layernorm.weight", ones(hidden)
        attention = f"{layer}.self_attn"
        yield f"{attention}.q_proj.weight", matrix(queries, hidden)
        yield f"{attention}.k_proj.weight", matrix(keys, hidden)
        yield f"{attention}.v_proj.weight", matrix(keys, hidden)
        yield f"{attention}.o_proj.weight", matrix(hidden, queries)
        yield f"{attention}.q_norm.weight", ones(head)
        yield f"{attention}.k_norm.weight", ones(head)
        if number in config["mlp_only_layers"]:
            dense = config["intermediate_size"]
            yield f"{layer}.mlp.gate_proj.weight", matrix(dense, hidden)
            yield f"{layer}.mlp.up_proj.weight", matrix(dense, hidden)
            yield f"{layer}.mlp.down_proj.weight", matrix(hidden, dense)
            continue
        yield f"{layer}.mlp.gate.weight", matrix(config["num_experts"], hidden)
        for expert in range(config["num_experts"]):
            place = f"{layer}.mlp.experts.{expert}"
            yield f"{place}.gate_proj.weight", matrix(inner, hidden)
            yield f"{place}.up_proj.weight", matrix(inner, hidden)
            yield f"{place}.down_proj.weight", matrix(hidden, inner)


if __name__ == "__main__":
    from tests.integration.vllm_server import TINY_QWEN3_MOE

    write_checkpoint(Path(sys.argv[1]), TINY_QWEN3_MOE)
