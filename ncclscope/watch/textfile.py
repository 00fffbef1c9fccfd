"""Write a job's metrics for Prometheus: a file for node_exporter's textfile collector."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ncclscope.metrics import Sample, comm_labels, process_labels, samples_text, verdict_samples
from ncclscope.model import State
from ncclscope.private import replace_file
from ncclscope.watch.poll import Poll


def write_textfile(path: Path, poll: Poll, *, troubles: int, now: float) -> None:
    """Replace the metrics file atomically.

    Args:
        path: The file; the collector expects a name that ends with ``.prom``.
        poll: The poll to export.
        troubles: Number of divergences and hangs so far.
        now: Seconds since 1970.

    Raises:
        OSError: The file cannot be written.
    """
    text = metrics_text(poll, troubles=troubles, now=now)
    replace_file(path, text, 0o644)  # the collector runs as another user


def metrics_text(poll: Poll, *, troubles: int, now: float) -> str:
    """Return the text of the metrics file, metrics in a fixed order.

    Args:
        poll: The poll to export.
        troubles: Number of divergences and hangs so far.
        now: Seconds since 1970.
    """
    return samples_text(poll_samples(poll, troubles, now))


def poll_samples(poll: Poll, troubles: int, now: float) -> Iterator[Sample]:
    """Yield all samples of a poll.

    Args:
        poll: The poll to export.
        troubles: Number of divergences and hangs so far.
        now: Seconds since 1970.
    """
    job = {"slurm_job_id": os.environ.get("SLURM_JOB_ID", "")}
    yield from verdict_samples(poll.status, poll.cause, job)
    yield "ncclscope_ranks", job, float(len(poll.ranks))
    if poll.verdict is not None:
        yield "ncclscope_ranks_expected", job, float(poll.verdict.run.expected)
        yield "ncclscope_coverage_complete", job, float(poll.verdict.coverage.complete)
    yield "ncclscope_troubles_total", job, float(troubles)
    yield "ncclscope_looked_seconds", job, now
    farthest = poll.farthest()
    hosts: dict[str, set[str]] = {}
    for cursor in poll.ranks:
        for key in cursor.comm_cursors:
            hosts.setdefault(key, set()).add(cursor.host)
    for cursor in poll.ranks:
        who = {**process_labels(cursor), **job}
        yield "ncclscope_idle_seconds", who, round(poll.now - cursor.moved_at, 3)
        for key, comm_cursor in cursor.comm_cursors.items():
            where = {**who, **comm_labels(comm_cursor.comm, hosts[key])}
            last = cursor.last(key)
            yield "ncclscope_calls_total", where, float(comm_cursor.seq)
            yield "ncclscope_lag_calls", where, float(farthest[key] - comm_cursor.seq)
            if comm_cursor.p2p:
                yield "ncclscope_p2p_calls_total", where, float(comm_cursor.p2p)
            if last is not None and comm_cursor.tells:
                in_call = last.state is not State.COMPLETED
                yield "ncclscope_in_call", {**where, "collective": last.op}, float(in_call)
