"""A cluster without processes: real rings, written by real tracers, for as many ranks as wanted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import CREATION_SUFFIX, Run
from ncclscope.readers import open_run
from ncclscope.tracing.graphs import TracedGraph
from ncclscope.tracing.tracer import Comm, Tracer

__all__ = ["Cluster"]


class Cluster:
    """Ranks that post what a test gives them, in the order of the test.

    Args:
        directory: Where the rings go.
        size: World size.
        capacity: Records a ring keeps.
    """

    def __init__(self, directory: Path, size: int, capacity: int = 4096) -> None:
        self.directory = directory
        self.size = size
        self.tracers = [
            Tracer(
                directory,
                rank=rank,
                world_size=size,
                capacity=capacity,
                heartbeat=False,
                # One process writes for all; as processes of another host nobody asks for them.
                details={"host": f"node-{rank // 4}", "pid": 1000 + rank, "boot_id": ""},
            )
            for rank in range(size)
        ]
        self._last: dict[tuple[int, str], int] = {}

    @property
    def everybody(self) -> range:
        """All ranks."""
        return range(self.size)

    def comm(self, rank: int, label: str, ranks: Iterable[int], backend: str = "gloo") -> Comm:
        """Return a communicator as one of its ranks knows it."""
        members = tuple(ranks)
        key = f"{label}/{','.join(map(str, members))}"
        if label.endswith("groups"):
            key += CREATION_SUFFIX
        return self.tracers[rank].communicator(key, label, members, backend)

    def post(
        self,
        ranks: Iterable[int],
        label: str,
        op: str = "all_reduce",
        *,
        members: Iterable[int] | None = None,
        done: bool = True,
        backend: str = "gloo",
        **parameters: Any,
    ) -> None:
        """Post one call on each of some ranks.

        Args:
            ranks: Who posts it.
            label: The communicator's name.
            op: The operation.
            members: Members of the communicator; everybody when absent.
            done: Whether it completes.
            backend: The communicator's.
            **parameters: Those of :meth:`Tracer.record`.
        """
        parameters.setdefault("shape", (4, 2))
        parameters.setdefault("dtype", "float32")
        if op in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatterv"):
            parameters.setdefault("redop", "sum")
        parameters.setdefault("site", f"model.py:10 {op}")
        group = tuple(self.everybody if members is None else members)
        for rank in ranks:
            comm = self.comm(rank, label, group, backend)
            place = self.tracers[rank].record(comm, op, **parameters)
            if done:
                self.tracers[rank].complete(place)

    def capture(
        self, rank: int, calls: Iterable[tuple[str, dict[str, Any]]], label: str = "tp:0"
    ) -> TracedGraph:
        """Capture calls, given as for :meth:`post`, into a CUDA graph on one rank."""
        graphs = self.tracers[rank].graphs
        begun = graphs.begin()
        for op, fields in calls:
            self.post([rank], label, op, captured=True, done=False, **fields)
        return graphs.end(begun)

    def history(self, label: str = "tp:0", count: int = 5, **parameters: Any) -> None:
        """Post calls that all ranks agree in, each with a size of its own."""
        members = parameters.get("members")
        ranks = self.everybody if members is None else members
        for number in range(count):
            self.post(ranks, label, shape=(10 + number, 2), **parameters)

    def run(self, *, quiet: float | dict[int, float] | None = 60.0) -> Run:
        """Read the rings.

        Args:
            quiet: Seconds that the ranks lived on after their last call; None where the
                input is to say nothing about that.
        """
        run = open_run(self.directory)
        if quiet is None:
            silent = [replace(rank, last_seen_ns=None, alive=None) for rank in run.ranks]
            return replace(run, ranks=tuple(silent))
        ranks = []
        for rank in run.ranks:
            last = rank.last_call()
            seconds = quiet if isinstance(quiet, float) else quiet.get(rank.rank, 60.0)
            since = last.time_ns if last is not None else rank.started_ns
            assert since is not None
            ranks.append(replace(rank, last_seen_ns=since + int(seconds * 1e9), alive=False))
        return replace(run, ranks=tuple(ranks))

    def verdict(self, *, quiet: float | dict[int, float] | None = 60.0) -> Verdict:
        """Read and compare."""
        return diagnose(self.run(quiet=quiet))


def agrees(verdict: Verdict) -> bool:
    """Return whether all recorded calls agree, whether or not the job moved until it ended."""
    return verdict.cause is None and "All ranks agree in their recorded calls" in verdict.summary
