"""Rings of a large job, made as fast as files can be copied.

Two ranks' calls are recorded by the real tracer: one that diverges, and one of the others,
which have all made the same calls on communicators of their own, so that their records, marks
and tables are the same bytes. Each rank gets a ring of its own from the real writer, and
these parts copied into it.

A thousand ranks of a million records each would be 96 GB. Of *sparse* rings only those pages
are written that a diagnosis reads of any of sixteen full rings of the same calls; the rest
is a hole, as long as what it replaces. The reader knows nothing of it: a record in a hole
is no whole record, so that a reader of anything else finds a damaged ring, and no verdict
comes of it. What is saved is room, on the disk and in the page cache, and nothing that a
diagnosis of full rings in memory would have to do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runners.reads import Range, read_ranges
from ncclscope.ring import layout
from ncclscope.ring.layout import Geometry
from ncclscope.tracing.tracer import Comm, Tracer

__all__ = ["CAPACITY", "DIVERGING", "make_rings"]

CAPACITY = 65_536
DIVERGING = 5
TP = 8
LAYERS = 60
FULL = 2 * TP
"""Ranks of which full rings are made to see what is read of them."""


def make_rings(
    directory: Path, ranks: int, *, capacity: int = CAPACITY, sparse: bool = False
) -> int:
    """Write the rings of TP=8 and as many replicas as that takes.

    Each rank makes half as many calls again as its ring holds. After nine tenths of them, the
    diverging rank takes another operation than its peers, once.

    Args:
        directory: Where to.
        ranks: More than the diverging one; where they are no multiple of eight, the last replica
            is smaller than the others.
        capacity: Records of each.
        sparse: Whether to leave holes where a diagnosis does not read.

    Returns:
        Records that can be read in them, or could be if they were all there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{directory.name}-", dir=directory.parent) as name:
        calls = capacity // 2 * 3
        model, geometry = _record(Path(name), 0, capacity, calls, stray=calls)
        odd, _ = _record(Path(name), DIVERGING, capacity, calls, stray=calls // 10 * 9)
        parts = [(geometry.heap, geometry.total)]
        if sparse:
            full = Path(name, "full")
            _copy(full, FULL, model, odd, geometry, parts)
            parts = [
                (max(start, geometry.heap), stop)
                for start, stop in read_ranges(full)
                if stop > geometry.heap
            ]
        _copy(directory, ranks, model, odd, geometry, parts)
    return ranks * capacity


def _record(
    directory: Path, rank: int, capacity: int, calls: int, *, stray: int
) -> tuple[Path, Geometry]:
    """Make the full ring of one rank."""
    tracer = _tracer(directory, rank, FULL, capacity)
    _post(tracer, _communicators(tracer, rank, FULL), calls, stray=stray)
    tracer.close()
    return tracer.path, tracer.ring.geometry


def _copy(
    directory: Path, ranks: int, model: Path, odd: Path, geometry: Geometry, parts: Sequence[Range]
) -> None:
    """Make the rings of all ranks, with these parts of the one or the other."""
    for rank in range(ranks):
        tracer = _tracer(directory, rank, ranks, layout.MIN_CAPACITY)
        for comm in _communicators(tracer, rank, ranks):
            _kinds(tracer, comm)  # in the same order, hence with the same numbers
        tracer.close()
        with (
            open(odd if rank == DIVERGING else model, "rb") as source,
            open(tracer.path, "r+b") as target,
        ):
            # Self-description and texts have the same places in a larger ring, the rest has not.
            target.truncate(tracer.ring.geometry.heap)
            target.truncate(geometry.total)
            target.write(source.read(layout.HEADER_CHECK + 4))
            parts = [(layout.HEADER_COUNT, layout.HEADER_COUNT + layout.COUNT.size), *parts]
            for start, stop in parts:
                source.seek(start)
                target.seek(start)
                target.write(source.read(stop - start))


def _tracer(directory: Path, rank: int, ranks: int, capacity: int) -> Tracer:
    return Tracer(
        directory,
        rank=rank,
        world_size=ranks,
        labels={"tp": str(rank % TP), "dp": str(rank // TP)},
        capacity=capacity,
        heartbeat=False,
        details={"host": f"node-{rank // TP}", "pid": 1000 + rank, "boot_id": ""},
    )


def _communicators(tracer: Tracer, rank: int, ranks: int) -> Sequence[Comm]:
    replica, place = divmod(rank, TP)
    members = {
        "world:0": range(ranks),
        "tp:0": range(replica * TP, min(replica * TP + TP, ranks)),
        "dp:0": range(place, ranks, TP),
    }
    return [
        tracer.communicator(f"{label} {own[0]}", label, own, "nccl")
        for label, own in members.items()
    ]


def _kinds(tracer: Tracer, comm: Comm) -> None:
    for op, width in (("all_reduce", 3072), ("all_gather", 3072), ("reduce_scatter", 256)):
        for rows in range(16, 32):
            tracer.template(
                comm, op, shape=(rows, width), dtype="bfloat16", redop="sum", site="model.py:1 f"
            )


def _post(tracer: Tracer, comms: Sequence[Comm], count: int, *, stray: int) -> None:
    """Post steps of layers: a sum on TP, a gather and a scatter on DP; now and then on world."""
    kinds: dict[tuple[Comm, str, int], tuple[bytes, int]] = {}
    for comm in comms:
        _kinds(tracer, comm)
        for op, width in (("all_reduce", 3072), ("all_gather", 3072), ("reduce_scatter", 256)):
            for rows in range(16, 32):
                kinds[comm, op, rows] = tracer.template(
                    comm,
                    op,
                    shape=(rows, width),
                    dtype="bfloat16",
                    redop="sum",
                    site="model.py:1 f",
                )
    world, tp, dp = comms
    layer = ((tp, "all_reduce"), (dp, "all_gather"), (dp, "reduce_scatter"))
    made = step = 0
    while made < count:
        step += 1
        rows = 16 + step * step % 16
        calls = [(world, "all_reduce")] if step % 4 == 0 else []
        calls += layer * LAYERS
        for comm, op in calls[: count - made]:
            made += 1
            if made > stray and comm is tp:
                stray, op = count, "all_gather"
            fixed, signed = kinds[comm, op, rows]
            tracer.post(comm.channel, fixed, signed)
