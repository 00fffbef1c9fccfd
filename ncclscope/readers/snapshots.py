"""Join the process snapshots of several hosts into one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ncclscope.model import Rank, Run
from ncclscope.model.snapshot import Snapshot, Worker
from ncclscope.model.text import plural

_APART_NS = 600_000_000_000
"""Snapshots more than 10 minutes apart do not show the same moment of a job."""


def join_snapshots(snapshots: Sequence[Snapshot], run: Run) -> Snapshot:
    """Join the newest snapshot of each host, or of each node if hosts share a name.

    RAS and NVML are left out: they identify processes and devices by numbers that are unique on
    one host only.

    Args:
        snapshots: At least one snapshot.
        run: The run of the rings, which maps processes to ranks if replicas share numbers.
    """
    newest = max(snapshots, key=lambda snapshot: snapshot.time_ns)
    of_host: dict[tuple[str, str], Snapshot] = {}
    of_other_times: set[str] = set()
    for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.time_ns):
        if newest.time_ns - snapshot.time_ns <= _APART_NS:
            of_host[snapshot.host, snapshot.node] = snapshot
        else:
            of_other_times.add(snapshot.host)
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
            f"{plural(left_out, 'process')} left out: another host has a process of the same rank"
        )
    hosts = sorted({host for host, _ in of_host})
    if unseen := sorted(of_other_times.difference(hosts)):
        notes.append(
            f"stacks of {', '.join(unseen)} left out: by the clock there, they were sampled more "
            f"than {_APART_NS // 60_000_000_000} minutes before the others"
        )
    return replace(
        newest,
        host=", ".join(hosts),
        hosts=tuple(hosts),
        node="",
        gap=min(snapshot.gap for snapshot in of_host.values()),
        workers=tuple(workers[rank] for rank in sorted(workers)),
        engines=tuple(
            replace(engine, host=host)
            for (host, _), snapshot in sorted(of_host.items())
            for engine in snapshot.engines
        ),
        servers=tuple(
            replace(server, host=host)
            for (host, _), snapshot in sorted(of_host.items())
            for server in snapshot.servers
        ),
        sources=tuple(
            replace(source, available=False, state="read on each host, but not joined")
            if source.name in ("ras", "gpu") and source.available
            else replace(source, state=f"state and CPU time of {plural(len(workers), 'process')}")
            if source.name == "proc" and source.available
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
    """Return the node that the ring of a rank was collected from; empty if there is none."""
    folders = map(str, Path(rank.source).parents)
    return next((folder for folder in folders if folder in nodes), "")
