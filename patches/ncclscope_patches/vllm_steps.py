"""Notes which step of the engine a worker's calls belong to.

A step is one forward pass, of scheduled tokens or of a dummy batch that an idle replica runs
because its peers need its experts. The steps of workers that share experts are therefore the same
in number, and two that are in different ones are not where they should be. What sampling
posts belongs to the step whose tokens it samples.
"""

from __future__ import annotations

import itertools
from typing import Any

from ncclscope.tracing import session
from ncclscope_patches.probe import Patch

__all__ = ["VllmSteps"]


class VllmSteps(Patch):
    """Numbers the forward passes of a worker, from 1."""

    name = "vllm_steps"
    target = "vllm.v1.worker.gpu_worker"
    supports = "vllm 0.26 to 0.32"

    def install(self, module: Any) -> None:
        numbers = itertools.count(1)

        def real(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            output = args[1] if len(args) > 1 else kwargs["scheduler_output"]
            tokens = int(output.total_num_scheduled_tokens)
            # Without tokens there is no pass; the engine runs a dummy batch where one is needed.
            if tokens:
                _step(numbers, tokens, dummy=False)

        def dummy(_args: Any, _kwargs: Any) -> None:
            _step(numbers, 0, dummy=True)

        self.replace(module.Worker, "execute_model", real)
        self.replace(module.Worker, "execute_dummy_batch", dummy)


def _step(numbers: Any, tokens: int, *, dummy: bool) -> None:
    tracer = session.current()
    if tracer is not None:
        tracer.step(next(numbers), tokens=tokens, dummy=dummy)
