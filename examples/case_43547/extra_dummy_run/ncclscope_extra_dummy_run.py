"""A vLLM plugin that does what vLLM's pull request 44601 would: a forward in steps without tokens.

In such a step ``GPUModelRunner.execute_model`` returns early, and before that, where there are
several replicas, runs a dummy forward, but only under ``external_launcher``: no engine loop
watches over the replicas there. The pull request takes that condition away. This plugin leaves
vLLM's file alone and adds the forward to the runner's method.

Only the example beside it uses it, with ``NCCLSCOPE_EXTRA_DUMMY_RUN=1``.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from ncclscope_patches.importing import ImportHook

VARIABLE = "NCCLSCOPE_EXTRA_DUMMY_RUN"

_RUNNER = "vllm.v1.worker.gpu_model_runner"
_MARK = "__ncclscope_extra_dummy_run__"

_hook = ImportHook()


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``; vLLM may call it more than once."""
    if os.environ.get(VARIABLE) == "1":
        _hook.after(_RUNNER, _change)


def _change() -> None:
    runner = sys.modules[_RUNNER].GPUModelRunner
    usual = runner.execute_model
    if hasattr(usual, _MARK):
        return

    @functools.wraps(usual)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        output = usual(self, scheduler_output, *args, **kwargs)
        if scheduler_output.total_num_scheduled_tokens == 0 and _has_replicas(self):
            self._dummy_run(1)
        return output

    setattr(execute_model, _MARK, True)
    runner.execute_model = execute_model


def _has_replicas(runner: Any) -> bool:
    parallel = runner.parallel_config
    launched_outside = parallel.distributed_executor_backend == "external_launcher"
    return parallel.data_parallel_size > 1 and not launched_outside
