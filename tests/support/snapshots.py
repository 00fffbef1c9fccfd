"""Process snapshots as tests want them: stacks in a few words, or as they were recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclscope.attach.stacks import parse_dump
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model.snapshot import (
    Frame,
    GpuSample,
    ProcessSample,
    Snapshot,
    Source,
    Stacks,
    Thread,
    Worker,
)
from ncclscope.readers import assemble
from ncclscope.readers.bundle import with_snapshot

DATA = Path(__file__).parents[1] / "data" / "attach"
C10D = "torch/distributed/distributed_c10d.py"


def stack(*frames: str) -> tuple[Frame, ...]:
    """Read ``file.py:12 function`` for each frame, the outermost first."""
    found = []
    for text in frames:
        place, _, function = text.partition(" ")
        file, _, line = place.rpartition(":")
        found.append(Frame(function, file, int(line)))
    return tuple(found)


def in_collective(op: str, line: int, function: str = "step") -> tuple[Frame, ...]:
    """Return a stack of a program that waits in a collective of torch."""
    return stack("train.py:1 <module>", f"train.py:{line} {function}", f"{C10D}:3000 {op}")


def elsewhere(line: int, function: str = "load") -> tuple[Frame, ...]:
    """Return a stack of a program that waits for none."""
    return stack("train.py:1 <module>", f"train.py:{line} {function}")


def worker(
    rank: int,
    *samples: Sequence[Frame],
    state: str = "S",
    cpu: float = 0.0,
    switches: int = 0,
    **fields: Any,
) -> Worker:
    """Return a rank whose main thread was sampled at these places; at one: at all times."""
    seen = [*samples, samples[-1]] if len(samples) == 1 else list(samples)
    return Worker(
        pid=1000 + rank,
        rank=rank,
        rank_source="RANK",
        samples=(
            ProcessSample(state, 10.0, 10.0, 100),
            ProcessSample(state, 10.0 + cpu, 10.0 + cpu, 100 + switches),
        ),
        stacks=tuple(Stacks((Thread("MainThread", 1000 + rank, tuple(one)),)) for one in seen),
        **fields,
    )


def gpus(*busy: int) -> tuple[tuple[GpuSample, ...], ...]:
    """Samples of a GPU for each rank, so busy both times, and without use of their memory."""
    sample = tuple(
        GpuSample(i, "GPU", use, 0, 120.0 if use else 78.0, 700.0, (1000 + i,))
        for i, use in enumerate(busy)
    )
    return sample, sample


def snapshot(workers: Iterable[Worker], gap: float = 2.0, **fields: Any) -> Snapshot:
    """Return a process snapshot of some workers."""
    sources = fields.pop("sources", (Source("stacks", True, "read"), Source("proc", True, "read")))
    return Snapshot("host", 1, gap, tuple(workers), sources=sources, **fields)


def verdict_of(seen: Snapshot) -> Verdict:
    """Return the verdict on an untraced job."""
    return diagnose(with_snapshot(assemble([]), seen))


def judged(*workers: Worker, gap: float = 2.0, **fields: Any) -> Verdict:
    """Return the verdict on these workers."""
    return verdict_of(snapshot(workers, gap, **fields))


def recorded_moe(counters: bool = True) -> list[Worker]:
    """Four ranks of the recorded toy; without counters where it is wanted."""
    workers = []
    for rank in range(4):
        samples = []
        for name in ("first", "second"):
            dump = parse_dump((DATA / "moe" / f"{name}-{rank}.json").read_bytes())
            (main,) = (t for t in dump.threads if t.name == "MainThread")
            samples.append([_without_counters(f) if not counters else f for f in main.frames])
        workers.append(worker(rank, *samples))
    return workers


def _without_counters(frame: Frame) -> Frame:
    return Frame(frame.function, frame.file, frame.line)


def kinds(document: Mapping[str, Any]) -> list[str]:
    """Kinds of all findings."""
    return [finding["kind"] for finding in document["findings"]]
