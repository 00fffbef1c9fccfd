"""The vLLM plugin: vLLM calls it in each process, through ``vllm.general_plugins``.

Each part has its own environment variable; without any, nothing but this module is imported.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable

from ncclscope import settings

_PARTS = (
    ("VLLM_DISPATCH", "dispatch", "vLLM's own dispatcher stays"),
    ("VLLM_CPU_MOE", "cpu_moe", "NCCLSCOPE_VLLM_CPU_MOE has no effect"),
    ("VLLM_ROUTED_EXPERTS", "routing", "NCCLSCOPE_VLLM_ROUTED_EXPERTS has no effect"),
)
"""Variable, module and what a failure means, of each part besides the probes."""


def register() -> None:
    """Install the parts that the environment enables.

    ``NCCLSCOPE_DIR`` enables the probes, ``NCCLSCOPE_VLLM_DISPATCH`` another dispatcher for
    mixture-of-experts layers, ``NCCLSCOPE_VLLM_CPU_MOE`` such layers on CPU workers, and
    ``NCCLSCOPE_VLLM_ROUTED_EXPERTS`` the routing of requests that opt in.

    vLLM does not catch exceptions of plugins, so one here would end the process.
    """
    for line in settings.hints_once():
        print(f"ncclscope: {line}", file=sys.stderr)
    _attempt(_trace, "tracing is off in this process")
    for variable, part, otherwise in _PARTS:
        if settings.variable(variable):
            _attempt(functools.partial(_install, variable, part), f"{otherwise} in this process")


def _attempt(install: Callable[[], None], otherwise: str) -> None:
    try:
        install()
    except Exception as error:
        print(f"ncclscope: {otherwise}: {error!r}", file=sys.stderr)


def _trace() -> None:
    if settings.directory() is not None:
        from ncclscope_patches import registry

        registry.install_all()


def _install(variable: str, part: str) -> None:
    module = importlib.import_module(f"{__package__}.{part}")
    if module.wanted():
        module.install()
    elif (given := settings.variable(variable)) != "0":
        raise ValueError(f"NCCLSCOPE_{variable}={given!r} is neither 1 nor 0")
