"""Notes which step of the engine a worker's calls belong to.

A step is one forward pass, of scheduled tokens or of a dummy batch that an idle replica runs
because its peers need its experts. The steps of workers that share experts are therefore the same
in number, and two that are in different ones are not where they should be. What sampling
posts belongs to the step whose tokens it samples.
"""

from __future__ import annotations

from typing import Any

from ncclscope.ring.activity import Begun, Slot
from ncclscope.tracing import session
from ncclscope_patches.probe import Patch

__all__ = ["VllmSteps"]


class VllmSteps(Patch):
    """Numbers the forward passes of a worker, from 1, and notes which of its methods runs."""

    name = "vllm_steps"
    target = "vllm.v1.worker.gpu_worker"
    supports = "vllm 0.26 to 0.32"

    def install(self, module: Any) -> None:
        self._number = 0
        for name, enter in (
            ("execute_model", self._execute),
            ("sample_tokens", self._sample),
            ("execute_dummy_batch", self._dummy),
        ):
            function = getattr(module.Worker, name, None)
            if callable(function) and not self.has_replaced(function):
                self.put(module.Worker, name, self.guard_scope(function, enter, _leave))

    def _execute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = args[1] if len(args) > 1 else kwargs["scheduler_output"]
        tokens = int(output.total_num_scheduled_tokens)
        # Without tokens there is no pass; the engine runs a dummy batch where one is needed.
        return self._step("execute_model", tokens, dummy=False) if tokens else None

    def _dummy(self, _args: Any, _kwargs: Any) -> Any:
        return self._step("execute_dummy_batch", 0, dummy=True)

    def _sample(self, _args: Any, _kwargs: Any) -> Any:
        tracer = session.current()
        return None if tracer is None else _begin(tracer, "sample_tokens", self._number)

    def _step(self, method: str, tokens: int, *, dummy: bool) -> Any:
        tracer = session.current()
        if tracer is None:
            return None
        self._number += 1
        tracer.step(self._number, tokens=tokens, dummy=dummy)
        return _begin(tracer, method, self._number)


def _begin(tracer: Any, method: str, number: int) -> tuple[Slot, Begun]:
    slot = tracer.activity("step")
    return slot, slot.begin(method, number)


def _leave(token: tuple[Slot, Begun]) -> None:
    slot, begun = token
    slot.end(begun)
