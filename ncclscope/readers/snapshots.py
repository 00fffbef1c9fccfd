"""Captures of several hosts -> one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ncclscope.model import Rank, Run
from ncclscope.model.snapshot import Snapshot, Worker

__all__ = ["join_snapshots"]

_APART_NS = 600_000_000_000
"""Captures that lie further apart were not taken of the same moment of a job."""


def join_snapshots(snapshots: Sequence[Snapshot], run: Run) -> Snapshot:
    """Put the newest capture of each host together, or node, where hosts have the same name.

    What is known by the number of a process or of a device is left out: RAS and NVML do not say
    of which host, and another host may have the same numbers.

    Args:
        snapshots: At least one.
        run: Of the rings; its processes tell which rank is whose, where replicas share numbers.
    """
    newest = max(snapshots, key=lambda snapshot: snapshot.time_ns)
    of_host: dict[tuple[str, str], Snapshot] = {}
    for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.time_ns):
        if newest.time_ns - snapshot.time_ns <= _APART_NS:
            of_host[snapshot.host, snapshot.node] = snapshot
    if len(of_host) == 1:
        return newest
    nodes = {node for _, node in of_host}
    ranks = {(rank.host, _node(rank, nodes), rank.pid): rank.rank for rank in run.ranks if rank.pid}
    workers: dict[int, Worker] = {}
    notes: list[str] = []
    left_out = 0
    for (host, node), snapshot in sorted(of_host.items()):
        for worker in snapshot.workers:
            rank = ranks.get((host, node, worker.pid), worker.rank)
            if rank in workers:
                left_out += 1
                continue
            workers[rank] = replace(worker, rank=rank, host=host)
        notes += [f"{host}: {note}" for note in snapshot.notes]
    if left_out:
        notes.append(
            f"{left_out} process(es) with the rank of another, on another host, were left out"
        )
    hosts = sorted({host for host, _ in of_host})
    return replace(
        newest,
        host=", ".join(hosts),
        hosts=tuple(hosts),
        node="",
        gap=min(snapshot.gap for snapshot in of_host.values()),
        workers=tuple(workers[rank] for rank in sorted(workers)),
        sources=tuple(
            replace(source, available=False, state="asked on each host, and kept apart by host")
            if source.name in ("ras", "gpu") and source.available
            else source
            for source in newest.sources
        ),
        ras=None,
        ras_before=None,
        gpus=(),
        dead_rings=tuple(ring for one in of_host.values() for ring in one.dead_rings),
        notes=tuple(notes),
        redacted=any(snapshot.redacted for snapshot in of_host.values()),
    )


def _node(rank: Rank, nodes: Collection[str]) -> str:
    """Return the node that the ring of a rank was collected from; empty where none is."""
    folders = map(str, Path(rank.source).parents)
    return next((folder for folder in folders if folder in nodes), "")
