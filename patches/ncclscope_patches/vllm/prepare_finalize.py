"""Record the exchange of tokens between experts at vLLM's ``prepare`` and ``finalize``.

DeepEP and NIXL EP have probes of their own, and the exchange by all-gather and reduce-scatter is
recorded as such. Other libraries know no process group, or run without Python between their
kernels. They are recorded here, on one communicator for all layers: ``ep:0/flashinfer``. The shapes
are those of :mod:`ncclscope_patches.probes.expert_all_to_all`.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from ncclscope.tracing import coverage, session
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.posting import put_posting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import Handle, Handles

_PACKAGE = "vllm.model_executor.layers.fused_moe.prepare_finalize"
_TOKENS, _EXPERTS = 1, 4
"""Places of the tokens `[tokens, hidden]` and of the number of experts in ``prepare``."""
_OUTPUT = 1
"""Place of the combined tokens `[tokens, hidden]` in ``finalize``."""

_shared: dict[tuple[int, str], Handle] = {}
"""Handles by group and library: the layers of a model share the memory of the exchange."""
session.on_reset(_shared.clear)


class _PrepareFinalizeProbe(Patch):
    """Records both methods of one class, as ``dispatch`` and ``combine``."""

    owner: ClassVar[str]
    backend: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.handles = Handles(self._open)

    def install(self, module: Any) -> None:
        cls = getattr(module, self.owner, None)
        if cls is None:
            self.note_state(coverage.ABSENT, f"{self.target} has no {self.owner}")
            return
        put_posting(self, cls, "prepare", _prepare, self.handles)
        put_posting(self, cls, "finalize", _finalize, self.handles)

    def _open(self, _layer: Any) -> Handle:
        group = sys.modules["vllm.distributed.parallel_state"].get_ep_group().cpu_group
        known = _shared.get((id(group), self.backend))
        if known is None:
            known = process_groups.of_library(group, self.backend, self.backend)
            _shared[id(group), self.backend] = known
        return known


def _prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    tokens = args[_TOKENS] if len(args) > _TOKENS else kwargs["a1"]
    experts = args[_EXPERTS] if len(args) > _EXPERTS else kwargs["num_experts"]
    return "dispatch", (int(experts), tokens.shape[-1]), tokens.dtype


def _finalize(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    output = args[_OUTPUT] if len(args) > _OUTPUT else kwargs["output"]
    return "combine", (output.shape[-1],), output.dtype


class FlashInferOneSidedProbe(_PrepareFinalizeProbe):
    """FlashInfer's one-sided exchange over NVLink."""

    name = "flashinfer_one_sided"
    target = f"{_PACKAGE}.flashinfer_nvlink_one_sided"
    owner = "FlashInferNVLinkOneSidedPrepareAndFinalize"
    backend = "flashinfer"


class FlashInferTwoSidedProbe(_PrepareFinalizeProbe):
    """FlashInfer's two-sided exchange over NVLink."""

    name = "flashinfer_two_sided"
    target = f"{_PACKAGE}.flashinfer_nvlink_two_sided"
    owner = "FlashInferNVLinkTwoSidedPrepareAndFinalize"
    backend = "flashinfer"


class MoriProbe(_PrepareFinalizeProbe):
    """MORI's exchange between AMD GPUs."""

    name = "mori"
    target = f"{_PACKAGE}.mori"
    owner = "MoriPrepareAndFinalize"
    backend = "mori"


class MoonEpProbe(_PrepareFinalizeProbe):
    """MoonEP's balanced exchange."""

    name = "moonep"
    target = f"{_PACKAGE}.moonep"
    owner = "MoonEPPrepareAndFinalize"
    backend = "moonep"
