"""Runs that fail in every way, as rings, for what is written of them and read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.cluster import Cluster

__all__ = ["SCENARIOS", "prepare"]


def _calm(cluster: Cluster) -> None:
    cluster.history(count=6)


def _wrong_op(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)
    cluster.post([3], "tp:0", "all_gather", done=False)


def _skipped(cluster: Cluster) -> None:
    cluster.history()
    for rank in cluster.everybody:
        if rank != 2:
            cluster.post([rank], "tp:0", shape=(77, 2))
        cluster.post([rank], "tp:0", "all_gather", done=False)


def _extra(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([1], "tp:0", "barrier", shape=None, dtype=None)
    for number in range(4):
        cluster.post(cluster.everybody, "tp:0", "all_gather", shape=(20 + number, 2), done=False)


def _late(cluster: Cluster) -> None:
    cluster.history()
    cluster.history("dp:0", members=(0, 1))
    cluster.post([0, 2, 3], "tp:0", done=False)


def _wrong_size(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", shape=(9, 2), done=False)
    cluster.post([2], "tp:0", shape=(8, 2), done=False)


def _wrong_dtype(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", dtype="bfloat16", done=False)
    cluster.post([2], "tp:0", dtype="float16", done=False)


def _wrong_redop(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", redop="max", done=False)
    cluster.post([2], "tp:0", redop="min", done=False)


def _wrong_root(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([1, 2, 3], "tp:0", "broadcast", root=1, done=False)
    cluster.post([0], "tp:0", "broadcast", root=0, done=False)


def _cycle(cluster: Cluster) -> None:
    cluster.history("tp:0")
    cluster.history("dp:0")
    cluster.post([0, 1, 2], "tp:0", done=False)
    cluster.post([0, 1, 2], "dp:0", done=False)
    cluster.post([3], "dp:0", done=False)
    cluster.post([3], "tp:0", done=False)


def _sizes(cluster: Cluster) -> None:
    cluster.history()
    for rank in cluster.everybody:
        sizes = (4, 5, 6, 7) if rank != 1 else (4, 4, 6, 7)
        cluster.post([rank], "tp:0", "all_gatherv", shape=(4 + rank, 2), sizes=sizes, done=False)


def _transfers(cluster: Cluster) -> None:
    cluster.history()
    for _ in range(3):
        cluster.post([0], "tp:0", "send", peer=1)
        cluster.post([1], "tp:0", "recv", peer=0)
    cluster.post([1], "tp:0", "recv", peer=0, done=False)
    cluster.post([0, 2, 3], "tp:0", done=False)


def _captured(cluster: Cluster) -> None:
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", captured=True, done=False)
    cluster.post([3], "tp:0", done=False)


def _replayed(cluster: Cluster) -> None:
    cluster.history()
    calls = [("all_reduce", {"shape": (rows, 2)}) for rows in (1, 2, 3)]
    graphs = [cluster.capture(rank, calls) for rank in range(4)]
    for _ in range(3):
        for graph in graphs:
            graph.replay()
    for graph in graphs[1:]:
        graph.replay()
    for op, fields in calls:
        cluster.post([0], "tp:0", op, done=False, **fields)


SCENARIOS: dict[str, Callable[[Cluster], None]] = {
    "calm": _calm,
    "wrong_op": _wrong_op,
    "skipped": _skipped,
    "extra": _extra,
    "late": _late,
    "wrong_size": _wrong_size,
    "wrong_dtype": _wrong_dtype,
    "wrong_redop": _wrong_redop,
    "wrong_root": _wrong_root,
    "cycle": _cycle,
    "sizes": _sizes,
    "transfers": _transfers,
    "captured": _captured,
    "replayed": _replayed,
}


def prepare(directory: Path, name: str) -> Cluster:
    """Write the rings of one scenario, four ranks."""
    cluster = Cluster(directory, 4)
    SCENARIOS[name](cluster)
    return cluster
