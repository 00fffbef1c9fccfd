"""Bytes of a real vLLM server's answers with and without routing, as they come over HTTP.

    .venv-vllm/bin/python examples/routed_experts/vllm_volume.py

The model has the shape of gpt-oss-120b's routing, 36 layers, top 4 of 128 experts, and is tiny
otherwise; the prompt has the 2708 tokens of the proposal. Needs the environment of
`make test-vllm`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ncclscope_patches.routed_experts import decode_choice  # noqa: E402
from tests.integration.vllm_server import TINY_QWEN3_MOE, VllmServer  # noqa: E402

LAYERS, TOP_K, EXPERTS = 36, 4, 128
PROMPT, ANSWER = 2708, 9
LONGEST = 4096
SECONDS = 570.0
MODEL = {
    **TINY_QWEN3_MOE,
    "num_hidden_layers": LAYERS,
    "num_experts_per_tok": TOP_K,
    "num_experts": EXPERTS,
    "moe_intermediate_size": 16,
    "max_position_embeddings": LONGEST,
}
WAYS: dict[str, dict[str, Any]] = {
    "nobody opted in": {},
    "npy in base64": {"return_routed_experts": True},
    "compact": {"return_routed_experts": True, "routed_experts_encoding": "compact"},
}


def ask(server: VllmServer, prompt: list[int], xargs: dict[str, Any]) -> bytes:
    """Return the body of an answer; each prompt has its own salt, so that none finds a prefix."""
    body = {
        "model": "tiny-moe",
        "prompt": prompt,
        "max_tokens": ANSWER,
        "temperature": 0.0,
        "ignore_eos": True,
        "cache_salt": json.dumps(xargs),
    }
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        data=json.dumps({**body, "vllm_xargs": xargs} if xargs else body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        whole: bytes = response.read()
        assert int(response.headers["Content-Length"]) == len(whole)
    return whole


def main() -> int:
    """Print a line for each way."""
    prompt = np.random.default_rng(0).integers(3, 500, PROMPT).tolist()
    server = VllmServer(
        Path(tempfile.mkdtemp()),
        tensor_parallel_size=1,
        checkpoint=True,
        config=MODEL,
        environment={"NCCLSCOPE_VLLM_ROUTED_EXPERTS": "1"},
        arguments=["--max-model-len", str(LONGEST), "--max-num-batched-tokens", str(LONGEST)],
    )
    server.start(SECONDS)
    try:
        plain = 0
        for name, xargs in WAYS.items():
            body = ask(server, prompt, xargs)
            (choice,) = json.loads(body)["choices"]
            found = decode_choice(choice)
            plain = plain or len(body)
            size = "" if found is None else f", {found.ids.nbytes:,} bytes {found.ids.dtype}"
            print(f"{name:16} {len(body):>10,} bytes, {len(body) - plain:>9,} of routing{size}")
            if found is not None:
                assert found.ids.shape == (PROMPT + ANSWER - 1, LAYERS, TOP_K)
                assert not found.missing_count
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
