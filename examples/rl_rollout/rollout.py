"""verl's own rollout on the CPU: its vLLM server class."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

NAME = "vllm_server_0_0"
"""As verl calls the server of the first replica."""
TOKENS = 256


class Rollout:
    """One replica of verl's rollout, in an actor of Ray's.

    Args:
        checkpoint: Directory of the policy.
        answer_tokens: Maximum number of tokens of an answer.
    """

    def __init__(self, checkpoint: Path, answer_tokens: int) -> None:
        self._config = RolloutConfig(
            name="vllm",
            dtype="float32",
            prompt_length=TOKENS - answer_tokens,
            response_length=answer_tokens,
            max_model_len=TOKENS,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            tensor_model_parallel_size=1,
            enforce_eager=True,
            load_format="safetensors",
            enable_rollout_routing_replay=True,  # sets enable_return_routed_experts=True
            enable_sleep_mode=False,  # needs a GPU's memory pool
            free_cache_engine=False,
            engine_kwargs={"vllm": {"block_size": 32}},
        )
        self._model = HFModelConfig(
            path=str(checkpoint), override_config={"attn_implementation": "eager"}
        )
        actor = ray.remote(vLLMHttpServer).options(name=NAME, num_cpus=0, max_concurrency=100)
        self._server = actor.remote(
            config=self._config,
            model_config=self._model,
            rollout_mode=RolloutMode.HYBRID,
            workers=[],
            replica_rank=0,
            node_rank=0,
            gpus_per_node=1,
            nnodes=1,
            cuda_visible_devices="",
        )
        ray.get(self._server.launch_server.remote())

    def generate(self, prompts: Iterable[list[int]], temperature: float) -> list[Any]:
        """Return verl's ``TokenOutput`` of each prompt."""
        pending = [
            self._server.generate.remote(
                prompt_ids=list(prompt),
                sampling_params={"temperature": temperature, "ignore_eos": True},
                request_id=f"request-{os.urandom(4).hex()}",
            )
            for prompt in prompts
        ]
        return list(ray.get(pending))

    def begin_step(self, step: int) -> None:
        """Do what verl's adapter does after it has sent new weights."""
        ray.get(self._server.clear_kv_cache.remote())
        ray.get(self._server.set_global_steps.remote(step))


def routing(output: Any) -> NDArray[np.int64]:
    """Return what verl read of ``outputs[0].routed_experts``.

    Raises:
        SystemExit: There is none.
    """
    if output.routed_experts is None:
        raise SystemExit("verl read no routed_experts")
    return np.asarray(output.routed_experts).astype(np.int64)
