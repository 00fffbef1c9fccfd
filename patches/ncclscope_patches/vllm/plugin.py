"""The vLLM plugin: vLLM calls it in each process, through ``vllm.general_plugins``.

Each part has its own environment variable; without one, nothing is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ncclscope import settings

__all__ = ["register"]


def register() -> None:
    """Install the parts that the environment enables.

    ``NCCLSCOPE_DIR`` enables the probes, ``NCCLSCOPE_VLLM_DISPATCH`` another dispatcher for
    mixture-of-experts layers, ``NCCLSCOPE_VLLM_CPU_MOE`` such layers on CPU workers, and
    ``NCCLSCOPE_VLLM_ROUTED_EXPERTS`` the routing of requests that opt in.

    vLLM does not catch exceptions of plugins, so one here would end the process.
    """
    _attempt(_trace, "tracing is off in this process")
    if settings.variable("VLLM_DISPATCH"):
        _attempt(_replace_dispatch, "vLLM's own dispatcher stays in this process")
    if settings.variable("VLLM_CPU_MOE"):
        _attempt(_extend_cpu, "NCCLSCOPE_VLLM_CPU_MOE has no effect in this process")
    if settings.variable("VLLM_ROUTED_EXPERTS"):
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
