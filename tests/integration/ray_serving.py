"""Serve two requests by vLLM's Ray executor: `python -m tests.integration.ray_serving MODEL OUT`.

The first one asks for its routed experts, and OUT gets them with the tokens. When OUT.go appears,
the same request is served again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

PROMPT = list(range(20, 70))
TOKENS = 8
LIMIT = 600.0


def main(model: str, out: str) -> None:
    """Serve both."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        enforce_eager=True,
        tensor_parallel_size=2,
        distributed_executor_backend="ray",
        kv_cache_memory_bytes=1 << 26,
    )
    parameters = SamplingParams(
        max_tokens=TOKENS,
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        extra_args={"return_routed_experts": True},
    )
    for again in (Path(f"{out}.go"), None):
        (answer,) = engine.generate([{"prompt_token_ids": PROMPT}], parameters, use_tqdm=False)
        (output,) = answer.outputs
        result = output.routed_experts_result
        np.savez(out, tokens=output.token_ids, ids=result.ids, missing=result.missing)
        print("all answered", flush=True)
        end = time.monotonic() + LIMIT
        while again is not None and not again.exists() and time.monotonic() < end:
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
