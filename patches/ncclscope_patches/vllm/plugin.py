"""What vLLM calls in each of its processes, through the group ``vllm.general_plugins``.

Each part is asked for by a variable of its own, and without one nothing is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

__all__ = ["register"]


def register() -> None:
    """Install what the environment asks for; else does nothing.

    ``NCCLSCOPE_DIR`` asks for the probes, ``NCCLSCOPE_VLLM_DISPATCH`` for another dispatcher of
    mixtures of experts, ``NCCLSCOPE_VLLM_CPU_MOE`` for what CPU workers need to have any,
    ``NCCLSCOPE_VLLM_ROUTED_EXPERTS`` for the routing of requests that ask for it.

    vLLM does not guard the call: an exception here would end the process.
    """
    _attempt(_trace, "tracing is off in this process")
    if os.environ.get("NCCLSCOPE_VLLM_DISPATCH"):
        _attempt(_replace_dispatch, "vLLM's own dispatcher stays in this process")
    if os.environ.get("NCCLSCOPE_VLLM_CPU_MOE"):
        _attempt(_extend_cpu, "NCCLSCOPE_VLLM_CPU_MOE has no effect in this process")
    if os.environ.get("NCCLSCOPE_VLLM_ROUTED_EXPERTS"):
        _attempt(_return_routing, "NCCLSCOPE_VLLM_ROUTED_EXPERTS has no effect in this process")


def _attempt(install: Callable[[], None], otherwise: str) -> None:
    try:
        install()
    except Exception as error:
        print(f"ncclscope: {otherwise}: {error!r}", file=sys.stderr)


def _trace() -> None:
    from ncclscope.tracing import session

    if session.enabled():
        from ncclscope_patches import registry

        registry.install_all()


def _replace_dispatch() -> None:
    from ncclscope_patches.vllm import dispatch as vllm_dispatch

    vllm_dispatch.install()


def _extend_cpu() -> None:
    from ncclscope_patches.vllm import cpu_moe as vllm_cpu_moe

    if vllm_cpu_moe.wanted():
        vllm_cpu_moe.install()


def _return_routing() -> None:
    from ncclscope_patches.vllm import routing as vllm_routing

    if vllm_routing.wanted():
        vllm_routing.install()
