"""Tell a server that waits for requests from a rank that does not join a broadcast."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

from ncclscope import procfs
from ncclscope.attach.stacks import PySpy, find_py_spy
from ncclscope.engine.processes.motion import waits_for_requests
from ncclscope.engine.table import sender_of
from ncclscope.engine.verdict import Verdict
from ncclscope.model import Finding, Rank, Run
from ncclscope.model.snapshot import Stacks
from ncclscope.readers.ring.cursor import RingCursor


class RequestWatch:
    """The root of a pending broadcast that waited for requests when it was examined.

    A request that it then receives may hang before its first call, which leaves no record. So the
    process is read again and again, and examined once it no longer waits.

    Args:
        stall: Seconds between two reads, and for which it waits for no request before that counts.
    """

    partners: Sequence[RingCursor] = ()

    def __init__(self, stall: float) -> None:
        self._stall = stall
        self._idle: Rank | None = None
        self._read_at = float("-inf")
        self._busy_since: float | None = None

    def note(self, verdict: Verdict) -> None:
        """Remember the root that a verdict calls idle, if any."""
        found = [one for one in verdict.findings if one.role == "latent"]
        roots = [root for one in found if (root := _root(verdict.run, one)) is not None]
        self._idle = roots[0] if roots and verdict.status == "unknown" else None
        self._busy_since = None

    def is_due(
        self, living: Sequence[RingCursor], past: Sequence[RingCursor], now: float, wall_ns: int
    ) -> bool:
        """Return whether that root has not waited for requests for a while, nor made a call.

        Args:
            living: Cursors of running jobs.
            past: Cursors of ended jobs.
            now: Seconds by the watcher's clock.
            wall_ns: Nanoseconds since 1970 at the same moment.
        """
        if self._idle is None or now - self._read_at < self._stall:
            return False
        self._read_at = now
        idle = self._idle
        cursor = next((one for one in living if str(one.path) == idle.source), None)
        if cursor is None or now - cursor.moved_at < self._stall or _waits(idle):
            self._busy_since = None
            return False
        if self._busy_since is None:
            self._busy_since = now
            return False
        return True


def with_waiting_root(run: Run, verdict: Verdict) -> Run | None:
    """Return the run with the root of a pending broadcast marked as waiting for input.

    Its main thread may wait in a queue that another thread fills, as that of an HTTP server does,
    or for a thread that does so. The kernel shows a lock then, and only its stack shows more. It is
    read once, and only before an alarm.

    Args:
        run: The records of a running job.
        verdict: The verdict on them.

    Returns:
        None where the verdict is not about the root of a broadcast, or its stack shows no queue.
    """
    rank = None if verdict.cause is None else _root(run, verdict.cause)
    if rank is None or rank.details.get("waits_for_input") or not _waits(rank):
        return None
    marked = replace(rank, details={**rank.details, "waits_for_input": True})
    return replace(run, ranks=tuple(marked if one is rank else one for one in run.ranks))


def _root(run: Run, finding: Finding) -> Rank | None:
    """Return the living rank that others receive from, if a finding is about it."""
    call, comm = finding.peers, finding.comm
    sender = None if call is None or comm is None else sender_of(call, comm)
    if sender is None:
        return None
    named = (*finding.diverging_ranks, *finding.candidate_ranks)
    rank = run.by_rank.get(sender)
    return rank if rank is not None and rank.alive and rank.rank in named else None


def _waits(rank: Rank) -> bool:
    """Return whether a process of this host waits for input."""
    if not rank.pid or rank.host not in ("", socket.gethostname()):
        return False
    if procfs.waits_for_input(rank.pid):
        return True
    program = find_py_spy()
    return waits_for_requests(Stacks() if program is None else PySpy(program).read_one(rank.pid))
