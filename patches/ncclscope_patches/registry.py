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

GROUP = "ncclscope.patches"

_OWN = {
    "probes.c10d": ("C10dProbe",),
    "probes.functional": ("FunctionalProbe",),
    "vllm.pynccl": ("PyNcclProbe",),
    "vllm.cpu_shm": ("CpuShmProbe",),
    "probes.from_cpp.backward": ("BackwardNote",),
    "probes.cuda_graphs": ("CudaGraphProbe",),
    "probes.ddp": ("DdpNote",),
    "probes.from_cpp.dispatcher": ("DispatcherProbe",),
    "probes.dynamo": ("DynamoSkip",),
    "probes.expert_all_to_all": (
        *("DeepEpElasticProbe", "DeepEpFirstProbe", "DeepEpProbe", "NixlEpCu12Probe"),
        *("NixlEpProbe",),
    ),
    "probes.uneven": ("UnevenProbe",),
    "probes.unrecorded": (
        *("CompiledNote", "CupyNote", "MpiNote", "RayGroupNote", "RayNcclNote", "RpcNote"),
        *("SymmetricMemoryNote",),
    ),
    "engines.deepspeed": (
        *("DeepSpeedGrid", "DeepSpeedGroups", "DeepSpeedSequence", "DeepSpeedSteps"),
    ),
    "engines.megatron": ("MegatronGroups", "MegatronSteps"),
    "engines.sglang": ("SglangGroups", "SglangPyNcclProbe", "SglangSteps"),
    "startup.exceptions": (
        *("C10dErrorNote", "LoggedErrorNote", "MainErrorNote", "PrintedErrorNote"),
        *("ThreadErrorNote",),
    ),
    "startup.groups": ("CommInitNote", "InitNote"),
    "startup.launchers": ("TorchrunNote",),
    "startup.stores": ("StoreNote",),
    "startup.work": ("CompileNote", "DownloadNote", "ModelLoadNote", "TorchLoadNote"),
    "startup.timeouts": ("AbortHook",),
    "vllm.groups": ("VllmCommunicatorNames", "VllmGroupNames", "VllmEngineNames"),
    "vllm.kernels": ("CustomProbe", "FlashInferProbe", "FusionNote", "QuickProbe", "SymmMemProbe"),
    "vllm.steps": ("VllmSteps",),
    "vllm.prepare_finalize": (
        *("FlashInferOneSidedProbe", "FlashInferTwoSidedProbe", "MoonEpProbe", "MoriProbe"),
    ),
    "vllm.queues": ("VllmQueues",),
    "vllm.service": ("VllmEngineInput", "VllmRequests", "VllmScheduler"),
    "vllm.nixl": ("NixlReads", "NixlTransfers"),
    "vllm.transfers": ("VllmTransfers",),
    "vllm.complaints": ("VllmComplaints",),
}
"""Own patches by module, for a package that is on the path but not installed and has no entry
points, as in another environment's Python under ``ncclscope run``."""

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

    own = (f"{__package__}.{module}:{name}" for module, names in _OWN.items() for name in names)
    others = (entry.value for entry in metadata.entry_points(group=GROUP))
    references = dict.fromkeys((*own, *others))
    for reference in references:
        try:
            yield reference, _load(reference)
        except Exception as error:
            session.warn_once(reference, f"patch {reference} cannot be loaded: {error!r}")


def _load(reference: str) -> Any:
    from importlib import metadata

    return metadata.EntryPoint(name="", value=reference, group=GROUP).load()
