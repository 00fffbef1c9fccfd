"""Rings of a large job, made as fast as files can be copied.

One rank's calls are recorded by the real tracer. All others have made the same calls on other
communicators, so that their records, marks and tables are the same bytes: each gets a ring of
its own from the real writer, and these parts copied into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ncclscope.tracing.tracer import Comm, Tracer

__all__ = ["CAPACITY", "DIVERGING", "make_rings"]

CAPACITY = 65_536
CALLS = 100_000
"""Of each rank: the ring has wrapped."""
STRAY = 90_000
"""After so many calls the diverging rank takes another operation than its peers, once."""
DIVERGING = 5
TP = 8
LAYERS = 60


def make_rings(directory: Path, ranks: int) -> int:
    """Writes the rings of TP=8 and as many replicas as that takes.

    Args:
        directory: Where to.
        ranks: A multiple of eight.

    Returns:
        Records that can be read in them.
    """
    model = _tracer(directory, 0, ranks)
    comms = _communicators(model, 0, ranks)
    _post(model, comms, stray=CALLS)
    model.close()
    geometry = model.ring.geometry
    with open(model.path, "rb") as file:
        file.seek(geometry.heap)
        common = file.read()
    for rank in range(1, ranks):
        tracer = _tracer(directory, rank, ranks)
        comms = _communicators(tracer, rank, ranks)
        if rank == DIVERGING:
            _post(tracer, comms, stray=STRAY)
            tracer.close()
            continue
        for comm in comms:
            _kinds(tracer, comm)  # in the same order, hence with the same numbers
        tracer.close()
        with open(tracer.path, "r+b") as file:
            file.seek(geometry.heap)
            file.write(common)
    return ranks * CAPACITY


def _tracer(directory: Path, rank: int, ranks: int) -> Tracer:
    return Tracer(
        directory,
        rank=rank,
        world_size=ranks,
        labels={"tp": str(rank % TP), "dp": str(rank // TP)},
        capacity=CAPACITY,
        heartbeat=False,
        details={"host": f"node-{rank // TP}", "pid": 1000 + rank, "boot_id": ""},
    )


def _communicators(tracer: Tracer, rank: int, ranks: int) -> Sequence[Comm]:
    replica, place = divmod(rank, TP)
    members = {
        "world:0": range(ranks),
        "tp:0": range(replica * TP, replica * TP + TP),
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


def _post(tracer: Tracer, comms: Sequence[Comm], *, stray: int) -> None:
    """Posts steps of layers: a sum on TP, a gather and a scatter on DP; now and then on world."""
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
    while made < CALLS:
        step += 1
        rows = 16 + step * step % 16
        calls = [(world, "all_reduce")] if step % 4 == 0 else []
        calls += layer * LAYERS
        for comm, op in calls[: CALLS - made]:
            made += 1
            if made > stray and comm is tp:
                stray, op = CALLS, "all_gather"
            fixed, signed = kinds[comm, op, rows]
            tracer.post(comm.channel, fixed, signed)
