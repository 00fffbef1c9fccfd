"""Record the engine step that a worker's calls belong to.

A step is one forward pass, of scheduled tokens or of a dummy batch. An idle replica runs dummy
batches because its peers need its experts. So workers that share experts make the same number of
steps, and two in different steps have diverged. Calls during sampling belong to the step whose
tokens are sampled.
"""

from __future__ import annotations

from typing import Any

from ncclscope_patches.engines.steps import StepPatch
from ncclscope_patches.probes.noting import put_noting


class VllmSteps(StepPatch):
    """Numbers the forward passes of a worker, from 1, and records which of its methods runs."""

    name = "vllm_steps"
    target = "vllm.v1.worker.gpu_worker"

    def install(self, module: Any) -> None:
        for name, read in (
            ("execute_model", self._execute),
            ("sample_tokens", self._sample),
            ("execute_dummy_batch", self._dummy),
        ):
            put_noting(self, module.Worker, name, "step", read)

    def _execute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, int] | None:
        output = args[1] if len(args) > 1 else kwargs["scheduler_output"]
        tokens = int(output.total_num_scheduled_tokens)
        # Without tokens there is no forward pass; the engine runs a dummy batch if needed.
        return self._noted("execute_model", tokens) if tokens else None

    def _dummy(self, _args: Any, _kwargs: Any) -> tuple[str, int] | None:
        return self._noted("execute_dummy_batch", 0, dummy=True)

    def _noted(self, method: str, tokens: int, *, dummy: bool = False) -> tuple[str, int] | None:
        """Record the next step; return what to note of its method, None without tracing."""
        return (method, self._number) if self._next(tokens, dummy) else None

    def _sample(self, _args: Any, _kwargs: Any) -> tuple[str, int]:
        return "sample_tokens", self._number
