"""Find the patches, and apply each as soon as its target has been imported.

Importing this module and installing the hooks imports neither torch nor vllm nor the patches.
Every Python process under ``ncclscope run`` does it, and most of them never use a tensor.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ncclscope_patches.importing import ImportHook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ncclscope_patches.probes.probe import Patch

__all__ = ["active", "apply_all", "find", "install_all", "revert_all"]

GROUP = "ncclscope.patches"

_OWN = (
    "ncclscope_patches.probes.c10d:C10dProbe",
    "ncclscope_patches.probes.functional:FunctionalProbe",
    "ncclscope_patches.vllm.pynccl:PyNcclProbe",
    "ncclscope_patches.vllm.cpu_shm:CpuShmProbe",
    "ncclscope_patches.probes.from_cpp.backward:BackwardNote",
    "ncclscope_patches.probes.cuda_graphs:CudaGraphProbe",
    "ncclscope_patches.probes.ddp:DdpNote",
    "ncclscope_patches.probes.from_cpp.dispatcher:DispatcherProbe",
    "ncclscope_patches.probes.dynamo:DynamoSkip",
    "ncclscope_patches.probes.expert_all_to_all:DeepEpElasticProbe",
    "ncclscope_patches.probes.expert_all_to_all:DeepEpFirstProbe",
    "ncclscope_patches.probes.expert_all_to_all:DeepEpProbe",
    "ncclscope_patches.probes.expert_all_to_all:NixlEpCu12Probe",
    "ncclscope_patches.probes.expert_all_to_all:NixlEpProbe",
    "ncclscope_patches.probes.uneven:UnevenProbe",
    "ncclscope_patches.probes.unrecorded:CompiledNote",
    "ncclscope_patches.probes.unrecorded:CupyNote",
    "ncclscope_patches.probes.unrecorded:MpiNote",
    "ncclscope_patches.probes.unrecorded:RayGroupNote",
    "ncclscope_patches.probes.unrecorded:RayNcclNote",
    "ncclscope_patches.probes.unrecorded:RpcNote",
    "ncclscope_patches.probes.unrecorded:SymmetricMemoryNote",
    "ncclscope_patches.engines.deepspeed:DeepSpeedGrid",
    "ncclscope_patches.engines.deepspeed:DeepSpeedGroups",
    "ncclscope_patches.engines.deepspeed:DeepSpeedSequence",
    "ncclscope_patches.engines.deepspeed:DeepSpeedSteps",
    "ncclscope_patches.engines.megatron:MegatronGroups",
    "ncclscope_patches.engines.megatron:MegatronSteps",
    "ncclscope_patches.engines.sglang:SglangGroups",
    "ncclscope_patches.engines.sglang:SglangPyNcclProbe",
    "ncclscope_patches.engines.sglang:SglangSteps",
    "ncclscope_patches.startup.exceptions:C10dErrorNote",
    "ncclscope_patches.startup.exceptions:LoggedErrorNote",
    "ncclscope_patches.startup.exceptions:MainErrorNote",
    "ncclscope_patches.startup.exceptions:PrintedErrorNote",
    "ncclscope_patches.startup.exceptions:ThreadErrorNote",
    "ncclscope_patches.startup.groups:CommInitNote",
    "ncclscope_patches.startup.groups:InitNote",
    "ncclscope_patches.startup.launchers:TorchrunNote",
    "ncclscope_patches.startup.stores:StoreNote",
    "ncclscope_patches.startup.work:CompileNote",
    "ncclscope_patches.startup.work:DownloadNote",
    "ncclscope_patches.startup.work:ModelLoadNote",
    "ncclscope_patches.startup.timeouts:AbortHook",
    "ncclscope_patches.startup.work:TorchLoadNote",
    "ncclscope_patches.vllm.groups:VllmCommunicatorNames",
    "ncclscope_patches.vllm.groups:VllmGroupNames",
    "ncclscope_patches.vllm.groups:VllmEngineNames",
    "ncclscope_patches.vllm.kernels:CustomProbe",
    "ncclscope_patches.vllm.kernels:FlashInferProbe",
    "ncclscope_patches.vllm.kernels:FusionNote",
    "ncclscope_patches.vllm.kernels:QuickProbe",
    "ncclscope_patches.vllm.kernels:SymmMemProbe",
    "ncclscope_patches.vllm.steps:VllmSteps",
    "ncclscope_patches.vllm.prepare_finalize:FlashInferOneSidedProbe",
    "ncclscope_patches.vllm.prepare_finalize:FlashInferTwoSidedProbe",
    "ncclscope_patches.vllm.prepare_finalize:MoonEpProbe",
    "ncclscope_patches.vllm.prepare_finalize:MoriProbe",
    "ncclscope_patches.vllm.queues:VllmQueues",
    "ncclscope_patches.vllm.nixl:NixlReads",
    "ncclscope_patches.vllm.nixl:NixlTransfers",
    "ncclscope_patches.vllm.transfers:VllmTransfers",
    "ncclscope_patches.vllm.complaints:VllmComplaints",
)
"""Own patches, for a package that is on the path but not installed and has no entry points, as in
another environment's Python under ``ncclscope run``."""

_EVERYTHING_NEEDS = "torch"

_hook = ImportHook()
_installed: dict[str, Patch] = {}
_waiting = False


def install_all() -> None:
    """Apply all patches, now or after the import of their targets; never raise.

    Finding them costs some milliseconds, which processes without torch do not pay.
    """
    global _waiting
    if _EVERYTHING_NEEDS in sys.modules:
        apply_all()
    elif not _waiting:
        _waiting = True
        _hook.before(_EVERYTHING_NEEDS, apply_all)


def apply_all() -> None:
    """Find all patches; apply each now, or when its target is imported."""
    try:
        from ncclscope.native import profiler
        from ncclscope.tracing import scope, session

        if not session.enabled():
            return
        profiler.arrange(os.environ)
        scope.expect_plugin()  # a tracer that was made before has not seen the variable
        for reference, kind in find():
            if reference not in _installed:
                patch = _installed[reference] = kind()
                _hook.after(patch.target, patch.apply)
    except Exception as error:
        print(f"ncclscope: tracing is off in this process: {error!r}", file=sys.stderr)


def active() -> list[Patch]:
    """Return the patches that are active in this process."""
    return [patch for patch in _installed.values() if patch.active]


def revert_all() -> None:
    """Revert all patches."""
    for patch in _installed.values():
        patch.revert()


def find() -> Iterator[tuple[str, type[Patch]]]:
    """Yield the entry point reference and the class of each patch.

    A patch that cannot be loaded is left out, with a warning.
    """
    from importlib import metadata

    from ncclscope.tracing import session

    references = dict.fromkeys(_OWN)
    references.update(dict.fromkeys(entry.value for entry in metadata.entry_points(group=GROUP)))
    for reference in references:
        try:
            yield reference, _load(reference)
        except Exception as error:
            session.warn_once(reference, f"patch {reference} cannot be loaded: {error!r}")


def _load(reference: str) -> Any:
    from importlib import metadata

    return metadata.EntryPoint(name="", value=reference, group=GROUP).load()
