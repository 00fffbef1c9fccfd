"""A program that generates offline: `python offline.py MODEL READY`, and again on each new READY.

It makes READY when it has generated. Whoever removes the file lets it generate once more.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    """Generate whenever the file is missing."""
    from vllm import LLM, SamplingParams

    model, ready = sys.argv[1], Path(sys.argv[2])
    engine = LLM(
        model,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        tensor_parallel_size=2,
        enforce_eager=True,
        seed=0,
    )
    parameters = SamplingParams(max_tokens=12, ignore_eos=True, detokenize=False)
    while True:
        if not ready.exists():
            engine.generate([{"prompt_token_ids": [1, 2, 3]}], parameters, use_tqdm=False)
            ready.touch()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
