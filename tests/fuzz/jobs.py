"""Small jobs, healthy and not, whose rings are the same each time they are made."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from ncclscope.__main__ import main
from ncclscope.model import Call, DamagedCall, Run
from ncclscope.readers import open_run
from ncclscope.ring import layout
from ncclscope.ring.image import RECORD_DTYPE
from ncclscope.tracing.tracer import Tracer
from tests.fuzz.inputs import BaseInput, Files
from tests.support.cluster import Cluster
from tests.support.rings import geometry_of, seal, set_word

__all__ = ["RANKS", "Shown", "calls_of", "export", "invented", "read_files", "ring_base_inputs"]

RANKS = 3


class Shown(NamedTuple):
    """What is shown of a call."""

    rank: int
    comm: str
    seq: int
    op: str
    dtype: str | None
    redop: str | None
    root: int | None
    shape: tuple[int, ...] | None
    sizes: tuple[int, ...] | None


_BEGAN_NS = 1_750_000_000_000_000_000
_SHOWN = 48


def calls_of(run: Run, most: int = _SHOWN) -> frozenset[Shown]:
    """Return the calls that a run shows at both ends of each log, without damaged records."""
    found = set()
    for rank in (*run.ranks, *run.others):
        for key, log in rank.logs.items():
            first, stop = log.first, log.calls + 1
            spans = [(first, min(first + most, stop))]
            if stop - first > most:
                spans.append((max(first + most, stop - most), stop))
            for start, end in spans:
                for call in log.span(start, end):
                    if not isinstance(call, DamagedCall):
                        found.add(_shown(rank.rank, key, call))
    return frozenset(found)


def _shown(rank: int, key: str, call: Call) -> Shown:
    return Shown(
        rank, key, call.seq, call.op, call.dtype, call.redop, call.root, call.shape, call.sizes
    )


def invented(shown: Iterable[Shown], known: Iterable[Shown]) -> list[Shown]:
    """Return the calls that are shown and were not made.

    What cannot be read is not shown: a rank, an operation, an element type, a reduction, sizes.
    """
    places: dict[tuple[str, int], list[Shown]] = {}
    for one in known:
        places.setdefault((one.comm, one.seq), []).append(one)
    return [
        one
        for one in shown
        if not any(
            one.root == other.root
            and one.shape in (None, other.shape)
            and one.rank in (-1, other.rank)
            and one.op in ("?", other.op)
            and one.dtype in (None, other.dtype)
            and one.redop in (None, other.redop)
            and one.sizes in (None, other.sizes)
            for other in places.get((one.comm, one.seq), ())
        )
    ]


def ring_base_inputs() -> list[BaseInput]:
    """Return the rings of all jobs."""
    return [_base(name, job, healthy) for name, (job, healthy) in _JOBS.items()]


@lru_cache
def _base(name: str, job: Callable[[Cluster], None], healthy: bool) -> BaseInput:
    with TemporaryDirectory(prefix="ncclscope-fuzz-") as folder:
        cluster = Cluster(Path(folder), RANKS, capacity=layout.MIN_CAPACITY)
        for tracer in cluster.tracers:
            tracer.describe(**_fixed(tracer))
        job(cluster)
        for tracer in cluster.tracers:
            tracer.close()
        files = {}
        for rank, tracer in enumerate(cluster.tracers):
            files[f"rank-{rank}{layout.SUFFIX}"] = _settled(Path(tracer.path).read_bytes())
            tracer.detach()
        for path in Path(folder).iterdir():
            path.unlink()
        for file, data in files.items():
            Path(folder, file).write_bytes(data)
        return BaseInput(name, files, healthy, calls_of(open_run(folder), layout.MIN_CAPACITY))


def _fixed(tracer: Tracer) -> dict[str, Any]:
    """Return a description that is the same whatever process makes it."""
    return {
        "started_ns": _BEGAN_NS + tracer.rank,
        "parent": 1,
        "pid_namespace": 1,
        "start_ticks": 100 + tracer.rank,
        "argv": ["python", "train.py"],
        "python": "3.12.0",
        "versions": {"torch": "2.13.0"},
        "run": "",
        "gpu": tracer.rank,
    }


def _settled(data: bytes) -> bytes:
    """Return a ring whose clocks are the same each time."""
    fixed = bytearray(data)
    geometry = geometry_of(data)
    records = np.frombuffer(fixed, RECORD_DTYPE, geometry.capacity, geometry.records)
    made = records["begin"] != 0
    times = np.uint64(_BEGAN_NS) + records["begin"] * np.uint64(1000)
    records["time"] = np.where(made, times, 0)
    for place in (layout.HEADER_HEARTBEAT, layout.HEADER_EXITED):
        set_word(fixed, place, _BEGAN_NS + 60_000_000_000)
    for number in range(layout.MAX_ACTIVITIES):
        place = layout.HEADER_ACTIVITIES + number * layout.ACTIVITY.size
        for offset in (8, 16):
            if any(fixed[place + offset : place + offset + 8]):
                when = _BEGAN_NS + offset * 1_000_000
                fixed[place + offset : place + offset + 8] = when.to_bytes(8, "little")
    seal(fixed)
    return bytes(fixed)


def export(files: Files, format: str, name: str = "") -> Files:
    """Return the output of ``ncclscope export`` for rings.

    Args:
        files: The rings.
        format: For ``--format``.
        name: The target's name, whose suffix may count.
    """
    with TemporaryDirectory(prefix="ncclscope-fuzz-") as folder:
        rings, target = Path(folder, "rings"), Path(folder, "out", name)
        rings.mkdir()
        Path(folder, "out").mkdir()
        for file, data in files.items():
            (rings / file).write_bytes(data)
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            status = main(["export", str(rings), "--format", format, "-o", str(target)])
        if status != 0:
            raise RuntimeError(f"export --format {format} ended with {status}")
        return read_files(Path(folder, "out"))


def read_files(directory: Path) -> Files:
    """Return all files below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


# --- jobs -----------------------------------------------------------------------------------------


def _history(cluster: Cluster) -> None:
    """Post what all agree in: sizes lists, a second communicator, steps, an activity."""
    for rank in cluster.everybody:
        cluster.tracers[rank].step(1, tokens=4)
    cluster.history(count=3)
    cluster.history("dp:0", count=2, members=(0, 1))
    for rank in cluster.everybody:
        cluster.post([rank], "tp:0", "all_gatherv", shape=(rank + 1, 2), sizes=(1, 2, 3))
        cluster.tracers[rank].activity("dequeue").begin("execute", 2)
        cluster.tracers[rank].step(2, tokens=1)
    cluster.post(cluster.everybody, "tp:0", "broadcast", root=0, dtype="int64")


def _healthy(cluster: Cluster) -> None:
    _history(cluster)
    cluster.post(cluster.everybody, "groups", "new_group", shape=None, dtype="nccl", sizes=(0, 1))
    _send(cluster, 0, 1)


def _skipped(cluster: Cluster) -> None:
    _history(cluster)
    cluster.post([0, 1], "tp:0", "all_gather", shape=(7,))
    cluster.post(cluster.everybody, "tp:0", "reduce_scatter", shape=(9, 4), done=False)


def _waiting(cluster: Cluster) -> None:
    _history(cluster)
    cluster.post([0, 1], "tp:0", "all_gather", shape=(7,), done=False)


def _other_operation(cluster: Cluster) -> None:
    _history(cluster)
    cluster.post([0, 2], "tp:0", "all_reduce", shape=(7,), done=False)
    cluster.post([1], "tp:0", "all_gather", shape=(7,), done=False)


def _sends(cluster: Cluster) -> None:
    """Post transfers between neighbours, all of them whole."""
    for _ in range(3):
        for rank in (0, 1):
            _send(cluster, rank, rank + 1)
        cluster.history(count=1)


def _lost_send(cluster: Cluster) -> None:
    _sends(cluster)
    cluster.post([2], "pp:0", "recv", peer=1, done=False)
    cluster.post((0, 1), "tp:0", "all_gather", shape=(7,), done=False)


def _send(cluster: Cluster, source: int, target: int) -> None:
    cluster.post([source], "pp:0", "send", peer=target)
    cluster.post([target], "pp:0", "recv", peer=source)


def _graphs(cluster: Cluster) -> None:
    """Replay a CUDA graph on all ranks."""
    cluster.history(count=2)
    calls = [("all_reduce", {"shape": (n, 2)}) for n in (3, 4)] + [("all_gather", {})]
    _replay(cluster, [calls] * RANKS)
    cluster.history(count=1)


def _other_graph(cluster: Cluster) -> None:
    """Replay graphs of which one holds a call less."""
    cluster.history(count=2)
    calls = [("all_reduce", {"shape": (n, 2)}) for n in (3, 4, 5)]
    _replay(cluster, [calls, calls, calls[:2]])
    cluster.post(cluster.everybody, "tp:0", "all_gather", shape=(7,), done=False)


def _replay(cluster: Cluster, graphs: Iterable[list[tuple[str, dict[str, Any]]]]) -> None:
    for rank, calls in enumerate(graphs):
        own = cluster.tracers[rank].graphs
        begun = own.begin()
        for op, fields in calls:
            cluster.post([rank], "tp:0", op, captured=True, done=False, **fields)
        graph = own.end(begun)
        for _ in range(3):
            graph.replay()


def _wrapped(cluster: Cluster) -> None:
    """Post more than the rings keep."""
    for number in range(layout.MIN_CAPACITY + 80):
        cluster.post(cluster.everybody, "tp:0", shape=(10 + number % 7, 2))


_JOBS: dict[str, tuple[Callable[[Cluster], None], bool]] = {
    "healthy": (_healthy, True),
    "sends": (_sends, True),
    "graphs": (_graphs, True),
    "wrapped": (_wrapped, True),
    "skipped": (_skipped, False),
    "waiting": (_waiting, False),
    "other_operation": (_other_operation, False),
    "lost_send": (_lost_send, False),
    "other_graph": (_other_graph, False),
}
