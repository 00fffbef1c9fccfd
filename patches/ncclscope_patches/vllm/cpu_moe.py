"""Expert and data parallelism for mixtures of experts on vLLM's CPU build, for tests.

Two things are missing there. The experts treat global expert ids as local ones and read past the
end of their weights. And the communicator can neither gather nor scatter rows. With both added, the
GPU's dispatcher runs on gloo with the same branches, and a server with tensor, data and expert
parallelism fits on two cores.

It is off by default; set ``NCCLSCOPE_VLLM_CPU_MOE=1`` in every process of the server.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from ncclscope import settings
from ncclscope.tracing import session
from ncclscope_patches.importing import ImportHook
from ncclscope_patches.probes import uneven

VARIABLE = "NCCLSCOPE_VLLM_CPU_MOE"

_COMMUNICATOR = "vllm.distributed.device_communicators.cpu_communicator"
_EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe"
_MARK = "__ncclscope_cpu_moe__"

_hook = ImportHook()


def wanted() -> bool:
    """Return whether the environment enables it."""
    return settings.variable("VLLM_CPU_MOE") == "1"


def install() -> None:
    """Add the missing parts when vLLM imports their modules; later calls do nothing."""
    _hook.after(_COMMUNICATOR, functools.partial(_extend, _add_rows, _COMMUNICATOR))
    _hook.after(_EXPERTS, functools.partial(_extend, _map_experts, _EXPERTS))


def _extend(add: Any, name: str) -> None:
    try:
        add(sys.modules[name])
    except Exception as error:
        session.warn_once(VARIABLE, f"{VARIABLE} has no effect in this process: {error}")


def _add_rows(module: Any) -> None:
    communicator = module.CpuCommunicator
    for name, method in (("all_gatherv", _all_gatherv), ("reduce_scatterv", _reduce_scatterv)):
        if name not in vars(communicator):  # a later version may define it
            setattr(communicator, name, method)


def _are_equal(sizes: Sequence[int]) -> bool:
    return len(set(sizes)) == 1


def _all_gatherv(
    self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None
) -> Any | list[Any]:
    """Gather rows with vLLM's GPU branches: an all_gather if all sizes are equal."""
    if dim != 0:
        raise NotImplementedError("only rows can be gathered")
    tensors = input_ if isinstance(input_, list) else [input_]
    if sizes is None or _are_equal(sizes):
        gathered = [self.all_gather(tensor, 0) for tensor in tensors]
    else:
        gathered = [
            uneven.all_gatherv(self.device_group, self.ranks, tensor.contiguous(), sizes)
            for tensor in tensors
        ]
    return gathered if isinstance(input_, list) else gathered[0]


def _reduce_scatterv(self: Any, input_: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    """Sum and scatter rows with vLLM's GPU branches."""
    if sizes is None or _are_equal(sizes):
        return self.reduce_scatter(input_, dim)
    dim %= input_.dim()
    rows = input_.movedim(0, dim).contiguous()
    output = uneven.reduce_scatterv(self.device_group, self.ranks, rows, sizes)
    return output.movedim(0, dim).contiguous()


def _map_experts(module: Any) -> None:
    experts = module.CPUUnquantizedExperts
    usual = experts.apply
    if hasattr(usual, _MARK):
        return
    names = _parameters(usual)

    @functools.wraps(usual)
    def apply(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        expert_map = given["expert_map"]
        if expert_map is None:
            usual(self, **given)
            return
        ids = given["topk_ids"]
        local = expert_map.to(ids.dtype)[ids.long()]
        foreign = local < 0
        given["topk_ids"] = local.masked_fill(foreign, 0)
        given["topk_weights"] = given["topk_weights"].masked_fill(foreign, 0)
        usual(self, **given)
        if given["apply_router_weight_on_input"]:  # one expert per token, unweighted
            given["output"].masked_fill_(foreign, 0)

    setattr(apply, _MARK, True)
    experts.apply = apply


def _parameters(function: Any) -> list[str]:
    """Return the names of a method's parameters, without ``self``."""
    import inspect

    names = list(inspect.signature(function).parameters)[1:]
    missing = {"expert_map", "topk_ids", "topk_weights", "output"} - set(names)
    if missing:
        raise NotImplementedError(f"this version's experts lack the parameters {sorted(missing)}")
    return names
