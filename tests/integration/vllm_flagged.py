"""An engine of vLLM's in this process, with its own flag for routed experts, as frameworks set it.

    python -m tests.integration.vllm_flagged MODEL ANSWERS.npz [KEY=VALUE ...]

Asks for prompts that share prefixes, some of them twice, while the cache is so small that requests
lose their blocks. Writes prompts, tokens and routing of each.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

BLOCK, BLOCKS, BUDGET = 32, 14, 64
LENGTHS = (150, 40, 40, 70, 100, 33)
LONG, SHORT = 60, 5
START = 17
"""From here on the second round wants the routing."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}


def main(model: str, target: str, *options: str) -> None:
    """Ask twice and write what came."""
    os.environ.update(ENVIRONMENT)
    from vllm import LLM, SamplingParams

    engine = LLM(
        model,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=BUDGET,
        block_size=BLOCK,
        num_gpu_blocks_override=BLOCKS,
        enforce_eager=True,
        distributed_executor_backend="uni",
        enable_return_routed_experts=True,
        **{name: json.loads(value) for name, value in (one.split("=") for one in options)},
    )
    chosen = np.random.default_rng(0)
    prompts = [chosen.integers(3, 500, length).tolist() for length in LENGTHS]
    prompts.append([*prompts[0][:100], 5, 6, 7])
    asked: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
    written: dict[str, Any] = {}
    for number, (tokens, start) in enumerate(((LONG, 0), (SHORT, START))):
        parameters = SamplingParams(
            max_tokens=tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            routed_experts_prompt_start=start,
        )
        for place, answer in enumerate(engine.generate(asked, parameters, use_tqdm=False)):
            (output,) = answer.outputs
            name = f"{number}-{place}"
            written[f"{name} tokens"] = [*prompts[place], *output.token_ids]
            written[f"{name} cached"] = answer.num_cached_tokens or 0
            if output.routed_experts is not None:
                written[f"{name} routing"] = output.routed_experts
            result = getattr(output, "routed_experts_result", None)
            if result is not None:
                written[f"{name} missing"] = result.missing
    np.savez(Path(target), **written)


if __name__ == "__main__":
    main(*sys.argv[1:])
