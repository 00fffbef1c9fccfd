"""Check whether a vLLM deployment can return its tokens' routing, and find the routing's shape."""

from __future__ import annotations

from typing import Any

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.support import Deployment, refuse_unsupported
from ncclscope_patches.vllm.routing.wrapping import wrap

__all__ = ["deployment_of", "extend_arguments", "places"]


def extend_arguments(module: Any) -> None:
    """Reject unsupported deployments when the user's arguments become a configuration."""
    wrap(module.EngineArgs, "create_engine_config", _create_engine_config)


def _create_engine_config(usual: Any, *args: Any, **kwargs: Any) -> Any:
    config = usual(*args, **kwargs)
    refuse_unsupported(deployment_of(config))
    return config


def deployment_of(config: Any) -> Deployment:
    """Return the deployment that a ``VllmConfig`` describes, before it starts.

    Raises:
        UsageError: Two features use the same field of the answer.
    """
    model, parallel = config.model_config, config.parallel_config
    own = getattr(model, "enable_return_routed_experts", False) or getattr(
        getattr(config, "aux_output_config", None), "enable_return_routed_experts", False
    )
    if own:
        raise UsageError(
            "vLLM's own enable_return_routed_experts is on",
            "leave it off: both answer in the same field",
        )
    transfer = config.kv_transfer_config
    return Deployment(
        experts=int(model.get_num_experts() or 0),
        pipeline_parallel=parallel.pipeline_parallel_size,
        context_parallel=parallel.decode_context_parallel_size
        * getattr(parallel, "prefill_context_parallel_size", 1),
        kv_connector=str(getattr(transfer, "kv_connector", None) or ""),
        kv_offload=bool(getattr(config.cache_config, "kv_offloading_size", None)),
        generates=model.runner_type == "generate",
        micro_batches=bool(parallel.use_ubatching),
        other_runner=bool(getattr(config, "use_v2_model_runner", False)),
    )


def places(config: Any) -> int:
    """Return the maximum number of steps in flight on a worker."""
    return 3 if config.scheduler_config.async_scheduling else 2
