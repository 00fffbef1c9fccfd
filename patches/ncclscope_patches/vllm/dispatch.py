"""Replace vLLM's dispatcher for mixture-of-experts layers by one whose calls cannot diverge.

vLLM's own dispatcher enqueues an all_gather if all ranks have the same number of rows, and an
all_gatherv otherwise. The number of rows also selects the kernel below. If one rank has other
sizes than its peers, it enqueues another call, and all ranks hang.

``NCCLSCOPE_VLLM_DISPATCH`` names what takes its place, see :mod:`.dispatch_manager`. Its ranks
agree on it when their group is created, see :mod:`.group_mode`: it serves on all of them, or on
none. It replaces any dispatcher of vLLM's whose methods take no arguments that it does not know.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from ncclscope import settings
from ncclscope.tracing import session
from ncclscope_patches.importing import ImportHook
from ncclscope_patches.vllm.dispatch_manager import MODES, make_manager

VARIABLE = "NCCLSCOPE_VLLM_DISPATCH"

_MODULE = "vllm.distributed.device_communicators.all2all"
_STOCK = "AgRsAll2AllManager"
_NEEDED = ("_get_comm_group", "_get_sizes", "dispatch", "dispatch_router_logits", "combine")

_hook = ImportHook()


def wanted() -> bool:
    """Return whether the environment names another dispatcher."""
    return bool(settings.variable("VLLM_DISPATCH"))


@functools.cache
def install() -> None:
    """Replace vLLM's dispatcher as soon as it is imported; later calls do nothing."""
    _hook.after(_MODULE, _replace)


def _replace() -> None:
    try:
        mode = settings.variable("VLLM_DISPATCH")
        if mode not in MODES:
            raise ValueError(f"{VARIABLE}={mode!r} is none of {', '.join(MODES)}")
        module: Any = sys.modules[_MODULE]
        stock = getattr(module, _STOCK)
        missing = [name for name in _NEEDED if not hasattr(stock, name)]
        if missing:
            raise NotImplementedError(f"{_STOCK} has no {' '.join(missing)}")
        manager = make_manager(stock, mode, VARIABLE)
        _refuse_unknown_arguments(stock, manager)
        setattr(module, _STOCK, manager)
    except Exception as error:
        session.warn_once(VARIABLE, f"vLLM's own dispatcher stays in this process: {error}")


def _refuse_unknown_arguments(stock: Any, manager: Any) -> None:
    """Raise if a method of vLLM's takes an argument that its replacement does not know."""
    for name, replacement in vars(manager).items():
        usual = getattr(stock, name, None)
        if name.startswith("_") or not inspect.isfunction(usual):
            continue
        known = inspect.signature(replacement).parameters
        unknown = [one for one in inspect.signature(usual).parameters if one not in known]
        if unknown:
            raise NotImplementedError(f"{_STOCK}.{name} takes {' '.join(unknown)}, which is new")
