"""Return routed experts from vLLM, per request, with the parts of :mod:`..routed_experts`.

``NCCLSCOPE_VLLM_ROUTED_EXPERTS=1``, in every process of the server, allocates the buffers. Requests
that opt in get the routing of their tokens; other requests have no extra cost:

====================  ==========================================================================
process               addition
====================  ==========================================================================
worker                routers write into a buffer; rows of requests that opted in go along with
                      the model runner's output (:mod:`.runner`)
engine                rows become one array a request, and follow KV blocks and preemptions; new
                      ones go along with each output (:mod:`.scheduling`)
server, or ``LLM``    each ``CompletionOutput`` gets ``routed_experts_result``, and answers over
                      HTTP their fields (:mod:`.outputs`, :mod:`.http_answers`)
====================  ==========================================================================

vLLM's own ``enable_return_routed_experts`` makes all requests ask, and is answered in vLLM's own
shape (:mod:`.every`); where that cannot be, vLLM's own way serves (:mod:`.configuration`). vLLM's
methods are wrapped, not replaced, and errors of the wrappers do not reach them.
"""

from __future__ import annotations

import functools
import importlib
import sys

from ncclscope import settings
from ncclscope.tracing import session
from ncclscope_patches.importing import ImportHook

__all__ = ["TRIED", "VARIABLE", "install", "wanted"]

VARIABLE = "NCCLSCOPE_VLLM_ROUTED_EXPERTS"

TRIED = ("0.26.0", "0.30.0", "0.32.0")
"""Versions of vLLM on which it was run. On others it is on if they have what it needs: the methods
that it wraps, and routers that pass :mod:`.self_test`; a line says so."""

_hook = ImportHook()


def wanted() -> bool:
    """Return whether the environment enables it."""
    return settings.variable("VLLM_ROUTED_EXPERTS") == "1"


@functools.cache
def install() -> None:
    """Add each part when vLLM imports its module; later calls do nothing."""
    for module, part, extend in _PLACES:
        _hook.after(module, functools.partial(_extend, module, part, extend))


def _extend(module: str, part: str, extend: str) -> None:
    try:
        version = str(getattr(sys.modules.get("vllm"), "__version__", "unknown")).partition("+")[0]
        if version not in TRIED:
            text = f"{VARIABLE}: not tried on vLLM {version}; on if the worker's self-test passes"
            session.warn_once(f"{VARIABLE} {version}", text)
        # Import late: the parts import torch and numpy, which a process may never need.
        getattr(importlib.import_module(f"{__name__}.{part}"), extend)(sys.modules[module])
    except Exception as error:
        session.warn_once(VARIABLE, f"{VARIABLE} has no effect in this process: {error}")


_PLACES = (
    ("vllm.engine.arg_utils", "configuration", "extend_arguments"),
    ("vllm.v1.worker.gpu_model_runner", "runner", "extend_runner"),
    ("vllm.v1.worker.gpu.model_runner", "second_runner", "extend_second_runner"),
    ("vllm.v1.worker.cpu_model_runner", "runner", "extend_cpu_runner"),
    ("vllm.v1.worker.gpu_worker", "runner", "extend_worker"),
    ("vllm.v1.core.sched.scheduler", "scheduling", "extend_scheduler"),
    ("vllm.v1.engine.core", "scheduling", "extend_engine"),
    ("vllm.v1.engine.input_processor", "outputs", "extend_inputs"),
    ("vllm.v1.engine.output_processor", "outputs", "extend_processor"),
    ("vllm.outputs", "outputs", "extend_outputs"),
    ("vllm.entrypoints.openai.completion.serving", "http_answers", "extend_completions"),
    ("vllm.entrypoints.openai.chat_completion.serving", "http_answers", "extend_chat"),
    *(
        (f"vllm.entrypoints.{place}.serving", "token_answers", "extend_tokens")
        for place in ("scale_out.token_in_token_out", "serve.disagg")  # of the release
    ),
)
