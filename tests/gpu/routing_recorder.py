"""What the routers of vLLM's second model runner choose, read from the device in every step."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Recorder", "Routing"]

Routing = tuple[tuple[int, ...], ...]
"""Experts of one token, by layer."""


class Recorder:
    """Reads what the routers chose in each step, independently of the plugin's rows.

    It takes tokens, positions and the place of each request from the device's own buffers.

    Args:
        layers: Number of layers that route tokens.
        top_k: Experts of each token.
    """

    def __init__(self, layers: int, top_k: int) -> None:
        self.layers, self.top_k = layers, top_k
        self.on = False
        self.steps = self.graphs = self.drafts = 0
        self.seen: dict[tuple[str, int, int], set[Routing]] = defaultdict(set)
        self.by_prefix: dict[tuple[int, ...], set[Routing]] = defaultdict(set)
        self._buffer: Any = None

    def forget(self) -> None:
        """Forget what was read so far, as with other weights."""
        self.seen.clear()
        self.by_prefix.clear()

    def install(self) -> None:
        """Extend the plugin's capture and vLLM's runner; call it before the engine is made."""
        import vllm.v1.worker.gpu.model_runner as module

        from ncclscope_patches.vllm.routing import runner

        usual_init, usual_step = runner.RunnerRouting.__init__, module.GPUModelRunner.execute_model

        def init(routing: Any, model_runner: Any, **more: Any) -> None:
            usual_init(routing, model_runner, **more)
            size = (self.layers, runner._most_tokens(model_runner), self.top_k)
            self._buffer = torch.full(size, -1, dtype=torch.int32, device=model_runner.device)
            for number, (_, part) in enumerate(runner._routing_modules(model_runner.get_model())):
                plugin = part.router.capture_fn
                part.router.set_capture_fn(functools.partial(self._write, number, plugin))

        def step(model_runner: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
            result = usual_step(model_runner, output, *args, **kwargs)
            if self.on and not kwargs.get("dummy_run") and model_runner.execute_model_state:
                self._read(model_runner, output)
            return result

        runner.RunnerRouting.__init__ = init  # type: ignore[method-assign]
        module.GPUModelRunner.execute_model = step

    def _write(self, number: int, plugin: Callable[[Any], None], ids: torch.Tensor) -> None:
        plugin(ids)
        self._buffer[number, : ids.shape[0]].copy_(ids)

    def _read(self, model_runner: Any, output: Any) -> None:
        batch = model_runner.execute_model_state.input_batch
        count = batch.num_tokens
        ids = self._buffer[:, :count].cpu().permute(1, 0, 2).tolist()
        tokens, positions = batch.input_ids[:count].tolist(), batch.positions[:count].tolist()
        names = {place: name for name, place in model_runner.req_states.req_id_to_index.items()}
        starts = batch.query_start_loc.tolist()
        for number, place in enumerate(batch.idx_mapping.tolist()):
            for row in range(starts[number], starts[number + 1]):
                routing = tuple(map(tuple, ids[row]))
                self.seen[names[place], positions[row], tokens[row]].add(routing)
        self.steps += 1
        self.graphs += batch.num_tokens_after_padding > count
        self.drafts += sum(map(len, output.scheduled_spec_decode_tokens.values()))
