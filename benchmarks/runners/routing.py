"""What routed experts cost a real vLLM engine: ``python -m benchmarks.runners.routing``.

One engine on the CPU, in this process, serves the same requests again and again, in turns

- ``none``: nothing is captured;
- ``offered``: the server returns routed experts, and nobody asks;
- ``asked``: all requests do;
- ``old``: each step is written to shared memory under a lock, and read from it for each request
  that ends, as vLLM first did; without the waits for a GPU, since there is none.

Ratios are of one round, to ``none``. Host time is what the loop of the engine spends on scheduling
and on outputs, which is when no other request is served; the step is all of it with the model.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "NCCLSCOPE_VLLM_ROUTED_EXPERTS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
MODES = ("none", "offered", "asked", "old")
MODEL = {"num_hidden_layers": 24, "num_experts": 64, "num_experts_per_tok": 8}
BLOCK = 16


@dataclass
class Taken:
    """What one mode took, a number a round.

    Attributes:
        tokens: Generated ones per second of processor time.
        host: Microseconds of the engine's loop in a step, without the model; the median step.
        stall: The same of the step in a hundred that took longest.
        step: Milliseconds of a whole step, the median one.
    """

    tokens: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    stall: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)


class Bench:
    """The engine, and what is switched on in it.

    Args:
        directory: For the model, and the old way's shared memory.
        batch: Requests at a time.
        tokens: To be generated for each.
    """

    def __init__(self, directory: Path, batch: int, tokens: int) -> None:
        from vllm import LLM

        from ncclscope_patches.vllm.routing import runner, scheduling
        from tests.integration.tiny_moe import write_checkpoint
        from tests.integration.vllm_server import TINY_QWEN3_MOE

        write_checkpoint(directory, {**TINY_QWEN3_MOE, **MODEL})
        self.llm = LLM(
            str(directory),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=512,
            max_num_seqs=batch,
            block_size=BLOCK * 2,
            enforce_eager=True,
            enable_prefix_caching=False,
        )
        self.batch, self.tokens = batch, tokens
        core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self._parts = [
            (self.scheduler, scheduling._ROUTING, getattr(self.scheduler, scheduling._ROUTING)),
            (self.runner, runner._ROUTING, getattr(self.runner, runner._ROUTING)),
        ]
        self.capture = self._parts[1][2].worker.capture
        self.segment = Path("/dev/shm") / f"routing-bench-{os.getpid()}"
        self.times: list[float] = []
        self.steps: list[float] = []
        self._time(core)

    def run(self, mode: str, seed: int) -> tuple[float, float, float, float]:
        """Serve one round; see :class:`Taken`."""
        from vllm import SamplingParams

        extra = {"return_routed_experts": True} if mode == "asked" else None
        asked = SamplingParams(
            max_tokens=self.tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            extra_args=extra,
        )
        draw = random.Random(seed)
        prompts = [
            {"prompt_token_ids": [draw.randrange(3, 500) for _ in range(draw.randint(20, 200))]}
            for _ in range(self.batch)
        ]
        for owner, name, part in self._parts:
            setattr(owner, name, part if mode in ("offered", "asked") else None)
        self.times.clear()
        self.steps.clear()
        way: Callable[[], Any] = self._old if mode == "old" else _nothing
        with way():
            start = time.thread_time()
            answers = self.llm.generate(prompts, asked, use_tqdm=False)
            seconds = time.thread_time() - start
        found = [getattr(one.outputs[0], "routed_experts_result", None) for one in answers]
        if [one is not None for one in found] != [mode == "asked"] * len(found):
            raise RuntimeError(f"{mode}: {found}")
        for one, prompt in zip(found, prompts, strict=True):
            if one is not None and one.tokens - one.missing_count != (
                len(prompt["prompt_token_ids"]) + self.tokens - 1
            ):
                raise RuntimeError("tokens are missing")
        return (
            self.batch * self.tokens / seconds,
            statistics.median(self.times) * 1e6,
            statistics.quantiles(self.times, n=100)[98] * 1e6,
            statistics.median(self.steps) * 1e3,
        )

    def _time(self, core: Any) -> None:
        """Measure the steps of the engine, and the parts of the scheduler in them."""
        schedule, update, step = (
            self.scheduler.schedule,
            self.scheduler.update_from_output,
            core.step,
        )
        spent = 0.0

        def timed(call: Callable[..., Any]) -> Callable[..., Any]:
            def measured(*args: Any, **kwargs: Any) -> Any:
                nonlocal spent
                start = time.thread_time()
                try:
                    return call(*args, **kwargs)
                finally:
                    spent += time.thread_time() - start

            return measured

        def stepped() -> Any:
            nonlocal spent
            spent, start = 0.0, time.thread_time()
            result = step()
            self.times.append(spent)
            self.steps.append(time.thread_time() - start)
            return result

        self.scheduler.schedule = timed(schedule)
        self.scheduler.update_from_output = timed(update)
        core.step = core.step_fn = stepped

    @contextmanager
    def _old(self) -> Iterator[None]:
        """Save each step, and read each request that ends, in the loop that feeds all."""
        from examples.routed_experts.shared_memory_reference import SharedMemoryReference

        blocks = self.scheduler.kv_cache_config.num_blocks
        size = self.scheduler.block_size
        reference = SharedMemoryReference(
            self.capture.shape, blocks * size, self.segment, create=True
        )
        forward, update = self.runner._model_forward, self.scheduler.update_from_output
        table = self.runner.input_batch.block_table[0]

        def captured(*args: Any, **kwargs: Any) -> Any:
            self.capture.begin()
            try:
                result = forward(*args, **kwargs)
            finally:
                self.capture.end()
            rows = sum(self.scheduled.values())
            slots = table.slot_mapping.gpu[:rows]
            reference.save(self.capture.ids[:, :rows], slots)
            return result

        def updated(output: Any, result: Any) -> Any:
            running = {request.request_id: request for request in self.scheduler.running}
            held = {
                name: self.scheduler.kv_cache_manager.get_block_ids(name)[0] for name in running
            }
            outputs = update(output, result)
            for name, request in running.items():
                if request.is_finished():
                    places = np.array(held[name])[:, None] * size + np.arange(size)
                    reference.read(places.reshape(-1)[: request.num_tokens - 1])
            return outputs

        execute = self.runner.execute_model

        def executed(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            self.scheduled: Mapping[str, int] = scheduled.num_scheduled_tokens
            return execute(scheduled, *args, **kwargs)

        self.runner._model_forward, self.runner.execute_model = captured, executed
        self.scheduler.update_from_output = updated
        try:
            yield
        finally:
            del self.runner._model_forward, self.runner.execute_model
            self.scheduler.update_from_output = update
            reference.close()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def main() -> None:
    """Measure all modes in turns, and print medians."""
    parser = argparse.ArgumentParser(prog="benchmarks.runners.routing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    taken = {mode: Taken() for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="ncclscope-bench-") as name:
        bench = Bench(Path(name), given.batch, given.tokens)
        for mode in MODES:
            bench.run(mode, 0)
        order = list(MODES)
        for number in range(given.rounds):
            for mode in order:
                figures = bench.run(mode, number)
                for kept, figure in zip(vars(taken[mode]).values(), figures, strict=True):
                    kept.append(figure)
            order = [*order[1:], order[0]]
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    print(f"{given.batch} requests at a time, {MODEL}; medians of {given.rounds} rounds\n")
    print(f"{'':10} {'tokens/s':>9} {'of none':>24} {'host us':>8} {'p99 us':>8} {'step ms':>8}")
    for mode, one in taken.items():
        pairs = zip(one.tokens, taken["none"].tokens, strict=True)
        ratios = sorted(mine / other for mine, other in pairs)
        spread = f"{statistics.median(ratios):.4f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(
            f"{mode:10} {statistics.median(one.tokens):9.1f} {spread:>24} "
            f"{statistics.median(one.host):8.0f} {statistics.median(one.stall):8.0f} "
            f"{statistics.median(one.step):8.2f}"
        )


if __name__ == "__main__":
    main()
