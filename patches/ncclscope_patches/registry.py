"""Finds the patches and applies each as soon as what it patches has been imported.

Importing this module, or starting to wait, imports neither torch nor vllm nor the patches:
it happens in every Python process below ``ncclscope run``, most of which never see a tensor.
"""

from __future__ import annotations

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
    "ncclscope_patches.probes.pynccl:PyNcclProbe",
    "ncclscope_patches.vllm.cpu_shm:CpuShmProbe",
    "ncclscope_patches.probes.cuda_graphs:CudaGraphProbe",
    "ncclscope_patches.probes.ddp:DdpNote",
    "ncclscope_patches.probes.dynamo:DynamoSkip",
    "ncclscope_patches.probes.uneven:UnevenProbe",
    "ncclscope_patches.probes.unrecorded:CoalescedNote",
    "ncclscope_patches.probes.unrecorded:CompiledNote",
    "ncclscope_patches.probes.unrecorded:CupyNote",
    "ncclscope_patches.probes.unrecorded:MpiNote",
    "ncclscope_patches.probes.unrecorded:RayGroupNote",
    "ncclscope_patches.probes.unrecorded:RayNcclNote",
    "ncclscope_patches.probes.unrecorded:RpcNote",
    "ncclscope_patches.probes.unrecorded:SymmetricMemoryNote",
    "ncclscope_patches.vllm.groups:VllmCommunicatorNames",
    "ncclscope_patches.vllm.groups:VllmGroupNames",
    "ncclscope_patches.vllm.groups:VllmEngineNames",
    "ncclscope_patches.vllm.kernels:CustomProbe",
    "ncclscope_patches.vllm.kernels:FlashInferProbe",
    "ncclscope_patches.vllm.kernels:FusionNote",
    "ncclscope_patches.vllm.kernels:QuickProbe",
    "ncclscope_patches.vllm.kernels:SymmMemProbe",
    "ncclscope_patches.vllm.steps:VllmSteps",
    "ncclscope_patches.vllm.queues:VllmQueues",
)
"""These are there even where the package is not installed but only on the path, as in
another environment's Python below ``ncclscope run``: there are no entry points then."""

_EVERYTHING_NEEDS = "torch"

_hook = ImportHook()
_installed: dict[str, Patch] = {}
_waiting = False


def install_all() -> None:
    """Apply all patches, now or after the import of what they patch. Never raises.

    Finding them costs some milliseconds, which a process that never imports torch is
    spared.
    """
    global _waiting
    if _EVERYTHING_NEEDS in sys.modules:
        apply_all()
    elif not _waiting:
        _waiting = True
        _hook.before(_EVERYTHING_NEEDS, apply_all)


def apply_all() -> None:
    """Find all patches; apply those whose target is imported and has the others wait."""
    try:
        from ncclscope.tracing import session

        if not session.enabled():
            return
        for reference, kind in find():
            if reference not in _installed:
                patch = _installed[reference] = kind()
                _hook.after(patch.target, patch.apply)
    except Exception as error:
        print(f"ncclscope: tracing is off in this process: {error!r}", file=sys.stderr)


def active() -> list[Patch]:
    """Return the patches that are at work in this process."""
    return [patch for patch in _installed.values() if patch.active]


def revert_all() -> None:
    """Take back all that has been applied."""
    for patch in _installed.values():
        patch.revert()


def find() -> Iterator[tuple[str, type[Patch]]]:
    """Yield each patch's class with the reference by which it was found.

    One that cannot be loaded is named in a warning and left out.
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
