"""Metrics of a run in Prometheus' text format, named as by ``ncclscope watch --textfile``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.metrics import Sample, comm_labels, process_labels, samples_text, verdict_samples
from ncclscope.model import Run, State
from ncclscope.private import write_private


def write_prometheus(run: Run, file: Path) -> None:
    """Write status, verdict, and calls of each rank, at the time of the run's last heartbeat."""
    write_private(file, samples_text(_samples(diagnose(run))))


def _samples(verdict: Verdict) -> Iterator[Sample]:
    run = verdict.run
    yield from verdict_samples(verdict.status, verdict.cause, {})
    yield "ncclscope_ranks", {}, float(len(run.ranks))
    yield "ncclscope_ranks_expected", {}, float(run.expected)
    seen = [rank.last_seen_ns for rank in run.ranks if rank.last_seen_ns]
    if seen:
        yield "ncclscope_looked_seconds", {}, max(seen) / 1e9
    hosts = {key: {rank.host for rank in run.members(key)} for key in run.communicators}
    farthest = {
        key: max((rank.logs[key].calls for rank in run.members(key)), default=0)
        for key in run.communicators
    }
    for rank in run.ranks:
        who = process_labels(rank)
        call = rank.last_call(transfers=True)
        if rank.last_seen_ns and call is not None and call.time_ns:
            idle = max(0, rank.last_seen_ns - call.time_ns) / 1e9
            yield "ncclscope_idle_seconds", who, round(idle, 3)
        for key, log in rank.logs.items():
            where = {**who, **comm_labels(run.communicators[key], hosts[key])}
            yield "ncclscope_calls_total", where, float(log.calls)
            yield "ncclscope_lag_calls", where, float(farthest[key] - log.calls)
            if sent := rank.p2p.get(key):
                yield "ncclscope_p2p_calls_total", where, float(len(sent))
            progress = rank.device.get(key)
            if progress is not None and progress.finished is not None:
                yield "ncclscope_gpu_finished_calls_total", where, float(progress.finished)
                if progress.entered is not None:
                    yield "ncclscope_gpu_entered_calls_total", where, float(progress.entered)
            if log.calls >= log.first:
                last = log.call(log.calls)
                is_reported = any(
                    one.state is not State.SCHEDULED
                    for one in log.span(max(log.first, log.calls - 8), log.calls + 1)
                )
                if is_reported:
                    in_call = float(last.state is not State.COMPLETED)
                    yield "ncclscope_in_call", {**where, "collective": last.op}, in_call
