"""What the kernel's log and a process's connections add to a finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.processes.motion import read_motions
from ncclscope.model import Finding, Run
from ncclscope.model.snapshot import KernelEvent, Snapshot
from ncclscope.wording.device import Host
from ncclscope.wording.names import ranks_text, sentence

_RECENT_NS = 3_600_000_000_000
"""Errors of GPUs that are older than this are not why a job hangs now."""
_SHOWN = 4


def with_host(case: Case, finding: Finding) -> Finding:
    """Return a finding with what the host says of its ranks: kills, GPU errors, lost peers."""
    run = case.run
    if finding.role != "cause" or not (run.kernel or run.snapshot):
        return finding
    killed = _killed(run, finding)
    lines = [
        *(f"kernel log: {Host.KILLED.of(event.pid, event.text)}" for event in killed.values()),
        *(f"kernel log: {event.text}" for event in _gpu_errors(run)),
        *(_lost(run.snapshot, finding.diverging_ranks) if run.snapshot else ()),
    ]
    inferred = finding.inferred
    if killed:
        who = ranks_text(killed)
        events = list(killed.values())
        finding = finding.with_note(Host.KILLED_RANKS.of(who, events[0].text))
    elif finding.kind == "dead_rank" and (unknown := _unknown(run)):
        last, ranks = unknown[-1], finding.diverging_ranks or finding.candidate_ranks
        inferred = (*inferred, Host.MAY_BE.of(last.pid or "?", last.text, ranks_text(ranks)))
    return replace(finding, evidence=(*finding.evidence, *lines), inferred=inferred)


def kernel_text(run: Run) -> str:
    """Return what the kernel's log says of the job; empty for nothing."""
    killed = [event for event in run.kernel if event.kind == "oom"][-_SHOWN:]
    texts = [Host.KILLED.of(event.pid or "?", event.text) for event in killed]
    texts += [event.text for event in _gpu_errors(run)]
    return sentence("; ".join(texts))


def sockets_text(snapshot: Snapshot) -> str:
    """Return whose connections lead to nobody; empty for nothing."""
    return "; ".join(_lost(snapshot, [worker.rank for worker in snapshot.workers]))


def _killed(run: Run, finding: Finding) -> dict[int, KernelEvent]:
    """Return the kernel's kills of a finding's ranks, whose processes are gone."""
    found = {}
    for number in (*finding.diverging_ranks, *finding.candidate_ranks):
        rank = run.by_rank.get(number)
        if rank is None or rank.alive or not rank.pid:
            continue
        for event in run.kernel:
            before = event.time_ns and rank.started_ns and event.time_ns < rank.started_ns
            same = (event.pid, event.host) == (rank.pid, rank.host)
            if event.kind == "oom" and same and not before:
                found[number] = event
    return found


def _unknown(run: Run) -> list[KernelEvent]:
    """Return recent kills of processes that are no known rank: a rank without a ring has no pid."""
    known = {rank.pid for rank in run.ranks}
    return [
        event
        for event in run.kernel
        if event.kind == "oom" and event.pid not in known and _is_recent(run, event)
    ]


def _gpu_errors(run: Run) -> list[KernelEvent]:
    found = [event for event in run.kernel if event.kind == "xid" and _is_recent(run, event)]
    return found[-_SHOWN:]


def _is_recent(run: Run, event: KernelEvent) -> bool:
    """Return whether an event is near the end of the records, or nothing says when it was."""
    seen = [rank.last_seen_ns for rank in run.ranks if rank.last_seen_ns]
    now = run.snapshot.time_ns if run.snapshot else max(seen, default=0)
    return not event.time_ns or not now or abs(now - event.time_ns) < _RECENT_NS


def _lost(snapshot: Snapshot, ranks: Sequence[int]) -> Iterator[str]:
    """Yield the lost connections of some ranks; none of those that wait for work of an engine.

    These wait at a queue, and a closed connection is left over from their start.
    """
    motions = read_motions(snapshot)
    for worker in snapshot.workers:
        if worker.rank in ranks and motions[worker.rank].waits != "queue":
            for line in worker.lost_peers[:_SHOWN]:
                yield f"sockets: rank {worker.rank}: {line}"
