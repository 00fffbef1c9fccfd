"""vLLM's second model runner on the CPU, whose kernels Triton's interpreter runs."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

__all__ = ["RUNNERS", "environment_of"]

RUNNERS = ("first", "second")
"""Names of vLLM's model runners, as parameters of tests."""
_INTERPRETER = Path(__file__).parents[1] / "support" / "triton_interpreter"


def environment_of(runner: str) -> dict[str, str] | None:
    """Return the variables with which vLLM chooses a model runner.

    Returns:
        The variables; None if this vLLM has none of that name for CPUs, or Triton is not installed.
    """
    if runner == "first":
        return {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    try:
        known = importlib.util.find_spec("vllm.v1.worker.cpu.model_runner") is not None
    except ModuleNotFoundError:
        known = False
    if not known or importlib.util.find_spec("triton") is None:
        return None
    paths = [str(_INTERPRETER), os.environ.get("PYTHONPATH", "")]
    return {
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
