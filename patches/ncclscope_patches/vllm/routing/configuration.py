"""Decide who returns a deployment's routed experts, when its configuration is created.

=====================================  =====================================================
deployment                             who answers
=====================================  =====================================================
vLLM's own flag, supported             this plugin answers all requests, as vLLM would
vLLM's own flag, anything unsupported  vLLM's own way, or its own refusal; a line says why
no flag, an unknown model runner       nobody: vLLM is left as it is; a line says so
no flag, anything else unsupported     the start is refused, with all reasons
no flag, supported                     this plugin answers the requests that ask
=====================================  =====================================================

The second model runner is unknown if it lacks something that :mod:`.runner_parts` names.
"""

from __future__ import annotations

import copy
from typing import Any

from ncclscope.tracing import session
from ncclscope_patches.routed_experts.support import (
    OTHER_RUNNER,
    Deployment,
    reasons,
    refuse_unsupported,
)
from ncclscope_patches.vllm.routing import runner_parts
from ncclscope_patches.vllm.routing.wrapping import wrap

FLAG = "enable_return_routed_experts"
"""vLLM's own engine argument, which frameworks for reinforcement learning set."""
_EVERY = "ncclscope_routed_experts"
# Both of these parts of a configuration have held the flag, in different releases.
_HOLDERS = ("model_config", "aux_output_config")


def extend_arguments(module: Any) -> None:
    """Decide when the user's arguments become a configuration."""
    wrap(module.EngineArgs, "create_engine_config", _create_engine_config)


def _create_engine_config(usual: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if getattr(self, FLAG, False) or _holds_flag(self):
        return _take_over(usual, self, *args, **kwargs)
    config = usual(self, *args, **kwargs)
    deployment = deployment_of(config)
    if reasons(deployment) == [OTHER_RUNNER]:
        text = "requests that ask for routed experts get none: the second model runner serves them"
        hint = "VLLM_USE_V2_MODEL_RUNNER=0 chooses the first"
        session.warn_once(FLAG, f"{text}, and {runner_parts.missing()[0]} ({hint})")
        return config
    refuse_unsupported(deployment)
    return config


def _take_over(usual: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Create the configuration without vLLM's flag, and mark that all requests are answered."""
    spare, flags = copy.copy(self), {FLAG: getattr(self, FLAG, False)}
    holder = getattr(self, "aux_output_config", None)
    try:
        setattr(self, FLAG, False)
        if holder is not None:
            self.aux_output_config = copy.copy(holder)
            setattr(self.aux_output_config, FLAG, False)
        config = usual(self, *args, **kwargs)
    finally:
        setattr(self, FLAG, flags[FLAG])
        if holder is not None:
            self.aux_output_config = holder
    why = reasons(deployment_of(config))
    if not isinstance(config.additional_config, dict):
        why.append("the platform has a configuration of its own")
    if why:
        session.warn_once(FLAG, f"vLLM's own {FLAG} serves, not ncclscope: {'; '.join(why)}")
        return usual(spare, *args, **kwargs)
    config.additional_config = {**config.additional_config, _EVERY: "every request"}
    return config


def _holds_flag(owner: Any) -> bool:
    return any(bool(getattr(getattr(owner, name, None), FLAG, False)) for name in _HOLDERS)


def answers_every_request(config: Any) -> bool:
    """Return whether this plugin answers for vLLM's own flag in a ``VllmConfig``."""
    more = getattr(config, "additional_config", None)
    return isinstance(more, dict) and _EVERY in more


def is_served_by_vllm(config: Any) -> bool:
    """Return whether vLLM is left as it is: for its own flag, or for an unknown model runner."""
    return _holds_flag(config) or _has_unknown_runner(config)


def _has_unknown_runner(config: Any) -> bool:
    return bool(getattr(config, "use_v2_model_runner", False)) and bool(runner_parts.missing())


def deployment_of(config: Any) -> Deployment:
    """Return the deployment that a ``VllmConfig`` describes, before it starts."""
    model, parallel = config.model_config, config.parallel_config
    transfer, drafts = config.kv_transfer_config, config.speculative_config
    return Deployment(
        experts=int(model.get_num_experts() or 0),
        pipeline_parallel=parallel.pipeline_parallel_size,
        context_parallel=parallel.decode_context_parallel_size
        * getattr(parallel, "prefill_context_parallel_size", 1),
        kv_connector=str(getattr(transfer, "kv_connector", None) or ""),
        kv_offload=bool(getattr(config.cache_config, "kv_offloading_size", None)),
        generates=model.runner_type == "generate"
        and not getattr(config, "is_mm_encoder_only", False),
        micro_batches=bool(parallel.use_ubatching),
        diffusion=bool(getattr(model, "is_diffusion", False)),
        fast_prefill=bool(getattr(config.cache_config, "kv_sharing_fast_prefill", False)),
        drafts_on_device=bool(getattr(drafts, "enable_adaptive_verification", False)),
        other_runner=_has_unknown_runner(config),
    )


def places(config: Any) -> int:
    """Return the maximum number of steps in flight on a worker."""
    return 3 if config.scheduler_config.async_scheduling else 2


def layers_of(config: Any) -> int:
    """Return the number of layers in arrays of vLLM's own: all of the model's, dense ones too."""
    model = config.model_config
    total = getattr(model, "get_total_num_hidden_layers", None)
    return int(total() if total is not None else model.hf_text_config.num_hidden_layers)
