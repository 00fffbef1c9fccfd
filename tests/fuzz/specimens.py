"""Whole inputs, healthy and not, in each format."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ncclscope.__main__ import main
from tests.support.cluster import Cluster

__all__ = ["Specimen", "make_specimens"]

SIZES = (3, 2, 1, 3)
FORMATS = {"jsonl": "jsonl", "dumps": "flight-recorder"}


@dataclass(frozen=True)
class Specimen:
    """An input of which the verdict is known.

    Attributes:
        name: Of what the job did.
        format: ``rings``, ``jsonl`` or ``dumps``.
        directory: Where its files are.
        healthy: Whether the job was in order.
    """

    name: str
    format: str
    directory: Path
    healthy: bool


def make_specimens(home: Path) -> Iterator[Specimen]:
    """Yield the specimens, made anew."""
    for name in ("healthy", "skipped", "waiting"):
        rings = home / f"{name}-rings"
        cluster = Cluster(rings, 4, capacity=1024)
        cluster.history(count=6)
        cluster.history("ep:0", count=3)
        for rank, rows in enumerate(SIZES):
            cluster.post([rank], "tp:0", "all_gatherv", shape=(rows, 2), sizes=SIZES)
        if name == "skipped":
            cluster.post([0, 1, 3], "tp:0", "all_gather", shape=(7,))
            cluster.post(cluster.everybody, "tp:0", "reduce_scatter", shape=(9, 4), done=False)
        elif name == "waiting":
            cluster.post([0, 1, 3], "tp:0", "all_gather", shape=(7,), done=False)
        for tracer in cluster.tracers:
            tracer.close()
        healthy = name == "healthy"
        yield Specimen(name, "rings", rings, healthy)
        for format, spelled in FORMATS.items():
            if (name, format) == ("waiting", "dumps"):
                continue  # dumps that are written at once do not tell waiting from running
            target = home / f"{name}-{format}"
            target.mkdir(parents=True)
            out = target if format == "dumps" else target / "trace.jsonl"
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                status = main(["export", str(rings), "--format", spelled, "-o", str(out)])
            if status != 0:
                raise RuntimeError(f"export --format {spelled} ended with {status}")
            yield Specimen(name, format, target, healthy)
