"""How a job is, for Prometheus: a text file that node_exporter's textfile collector reads."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ncclscope.metrics import STATUSES, Sample, samples_text
from ncclscope.model import State
from ncclscope.readers.ring.cursor import Words
from ncclscope.watch.watch import Look

__all__ = ["metrics_text", "write_textfile"]


def write_textfile(path: Path, look: Look, *, troubles: int, now: float) -> None:
    """Writes the file anew; whoever reads it sees the old one or the new one.

    Args:
        path: The file; the collector wants a name that ends with ``.prom``.
        look: What to write of.
        troubles: Divergences and hangs so far.
        now: Seconds since 1970.

    Raises:
        OSError: It cannot be written.
    """
    text = metrics_text(look, troubles=troubles, now=now)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)  # the collector is another user
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def metrics_text(look: Look, *, troubles: int, now: float) -> str:
    """Returns the text of the file, metrics in a fixed order."""
    return samples_text(_samples(look, troubles, now))


def _samples(look: Look, troubles: int, now: float) -> Iterator[Sample]:
    job = {"slurm_job_id": os.environ.get("SLURM_JOB_ID", "")}
    for status in STATUSES:
        yield "ncclscope_status", {"status": status, **job}, float(status == look.status)
    cause = look.verdict.cause if look.verdict is not None and look.in_trouble else None
    if cause is not None:
        about = {
            "kind": cause.kind,
            "comm_name": cause.comm.label if cause.comm is not None else "",
            "ranks": " ".join(map(str, cause.diverging_ranks)),
            "confidence": cause.confidence,
            **job,
        }
        yield "ncclscope_verdict", about, 1.0
    yield "ncclscope_ranks", job, float(len(look.ranks))
    if look.verdict is not None:
        yield "ncclscope_ranks_expected", job, float(look.verdict.run.expected)
    yield "ncclscope_troubles_total", job, float(troubles)
    yield "ncclscope_looked_seconds", job, now
    farthest = _farthest(look.ranks)
    hosts = _hosts(look.ranks)
    for words in look.ranks:
        who = {
            "node": words.host,
            "gpu": "" if words.gpu is None else str(words.gpu),
            "rank": str(words.rank),
            "pid": str(words.pid),
            **job,
        }
        yield "ncclscope_idle_seconds", who, round(look.now - words.moved_at, 3)
        for key, strand in words.strands.items():
            comm = {
                "comm_name": strand.comm.label,
                "comm": key,
                "n_nodes": str(len(hosts[key])),
                "nranks": str(len(strand.comm.ranks)),
            }
            last = words.last(key)
            yield "ncclscope_calls_total", {**who, **comm}, float(strand.seq)
            yield "ncclscope_lag_calls", {**who, **comm}, float(farthest[key] - strand.seq)
            if strand.p2p:
                yield "ncclscope_p2p_calls_total", {**who, **comm}, float(strand.p2p)
            if last is not None and strand.tells:
                in_call = last.state is not State.COMPLETED
                yield "ncclscope_in_call", {**who, **comm, "collective": last.op}, float(in_call)


def _farthest(ranks: Sequence[Words]) -> dict[str, int]:
    farthest: dict[str, int] = {}
    for words in ranks:
        for key, strand in words.strands.items():
            farthest[key] = max(farthest.get(key, 0), strand.seq)
    return farthest


def _hosts(ranks: Iterable[Words]) -> dict[str, set[str]]:
    hosts: dict[str, set[str]] = {}
    for words in ranks:
        for key in words.strands:
            hosts.setdefault(key, set()).add(words.host)
    return hosts
