"""What stacks show of engines without a record: whether they rest, and whether steps have tokens.

An engine of vLLM whose scheduler admits none of its requests sends its workers one step without
tokens after the other. These stacks move, and nothing is done: no worker comes to the model. After
such a step the engine sleeps for a moment, which it does only while it has requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.processes.requests import awaits_requests, is_of_workers
from ncclscope.engine.processes.samples import Sample, sample_of
from ncclscope.model import Run
from ncclscope.model.snapshot import Snapshot

_MODEL = re.compile(
    r"(?:^|/)(?:vllm/(?:model_executor|models|compilation|v1/(?:attention|sample|spec_decode))/|"
    r"torch/(?:nn/modules/|_ops\.py|fx/graph_module|cuda/(?:graphs|streams)))|"
    r"model_runner\.py (?:_prepare_inputs|_model_forward|_sample|sample_tokens|get_output|"
    r"_bookkeeping_sync|_dummy_run)$"
)
"""Files and functions that a step runs only if it has tokens."""
_AFTER_STEP = re.compile(r"(?:^|/)vllm/v1/engine/core\.py _process_engine_step$")
"""Where an engine sleeps that has requests, and that has scheduled no token."""
_LOOP = "run_busy_loop"
_WITHOUT_TOKENS = 2
"""Samples in that sleep, from which on its requests are known to be left out again and again. They
have to be most: an engine of a pipeline sleeps after a step, too, while all requests are at work.
"""


@dataclass(frozen=True)
class Stepping:
    """An engine without a record that was not seen to wait for requests.

    Attributes:
        pid: The engine core.
        samples: How many samples show it.
        without_tokens: Those that show it after a step without tokens.
    """

    pid: int
    samples: int
    without_tokens: int

    @property
    def schedules_nothing(self) -> bool:
        """Whether it is known to have requests, and to schedule none of their tokens."""
        return self.without_tokens >= max(_WITHOUT_TOKENS, self.samples / 2)


def stepping(run: Run) -> Iterator[Stepping]:
    """Yield the engines that wait for requests in no sample, where no worker runs its model.

    One that has not come to its loop starts up: it has no requests yet.
    """
    snapshot = run.snapshot
    if snapshot is None or _runs_model(snapshot):
        return
    recorded = {one.pid for one in run.others}
    for engine in snapshot.engines:
        samples = [sample_of(stacks) for stacks in engine.stacks if stacks.threads]
        starts = bool(samples) and not any(map(_is_in_loop, samples))
        rests = any(awaits_requests(one.waits, one.frames) for one in samples)
        if engine.pid not in recorded and not (starts or rests):
            yield Stepping(engine.pid, len(samples), sum(map(_is_after_step, samples)))


def without_engine(run: Run) -> list[int]:
    """Return the workers without a record that wait for work, where no engine of theirs was seen.

    It may be on another host, or a process of Ray. Whether it has requests is not known.
    """
    snapshot = run.snapshot
    if snapshot is None or snapshot.engines or run.others:
        return []
    motions = read_motions(snapshot).items()
    idle = [rank for rank, one in motions if one.waits == "queue" and is_of_workers(one.frames)]
    return [rank for rank in idle if not run.by_rank[rank].logs]


def _is_in_loop(engine: Sample) -> bool:
    return any(frame.name == _LOOP for frame in engine.frames)


def _is_after_step(engine: Sample) -> bool:
    last = engine.frames[-1]
    return bool(_AFTER_STEP.search(f"{last.file} {last.name}"))


def _runs_model(snapshot: Snapshot) -> bool:
    """Return whether a sample shows a worker, in whatever thread, at what a step with tokens does.

    A worker in a collective is in the model as well.
    """
    stacks = [each for worker in snapshot.workers for each in worker.stacks if each.threads]
    if any(sample_of(each).op for each in stacks):
        return True
    frames = (frame for each in stacks for thread in each.threads for frame in thread.frames)
    return any(_MODEL.search(f"{frame.file} {frame.name}") for frame in frames)
