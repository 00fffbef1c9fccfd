"""The result of one poll of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ncclscope.engine.verdict import Verdict
from ncclscope.model import Finding
from ncclscope.readers.ring.cursor import RingCursor


@dataclass(frozen=True)
class Poll:
    """Result of one poll of a job.

    Attributes:
        status: As in the JSON verdict: ``ok``, ``diverged``, ``hung``,
            ``incomplete`` or ``unknown``, which raises no alarm.
        activity: ``running``, ``idle`` (no rank is inside a call), ``over`` (all processes have
            ended) or ``waiting`` (no process yet).
        verdict: The verdict behind the status; None before the first diagnosis.
        ranks: Cursor of each process, sorted by rank.
        now: Time of the poll in seconds, by the watcher's clock.
        changed: Whether the verdict differs from the previous poll's.
        news: Whether trouble began with this poll.
        stuck: Rings of processes inside a call without progress for longer than the limit.
        over_for: Seconds since the last process was seen to have ended; None while any process
            runs, or before there is one.
        silent: Hosts that do not report, each with the reason.
    """

    status: str
    activity: str
    verdict: Verdict | None
    ranks: tuple[RingCursor, ...]
    now: float
    changed: bool
    news: bool
    stuck: frozenset[Path] = frozenset()
    over_for: float | None = None
    silent: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_trouble(self) -> bool:
        """Whether the ranks have diverged or hang."""
        return self.status in ("diverged", "hung")

    @property
    def cause(self) -> Finding | None:
        """Cause of the divergence or hang; None without one."""
        return self.verdict.cause if self.verdict is not None and self.in_trouble else None

    @property
    def word(self) -> str:
        """Status in capitals, or the activity of a job that waits or is over without trouble."""
        is_over = self.activity in ("waiting", "over") and not self.in_trouble
        return (self.activity if is_over else self.status).upper()

    def farthest(self) -> dict[str, int]:
        """Return the calls of the farthest member of each communicator, by its key."""
        found: dict[str, int] = {}
        for cursor in self.ranks:
            for key, on_comm in cursor.comm_cursors.items():
                found[key] = max(found.get(key, 0), on_comm.seq)
        return found


def gist(verdict: Verdict | None) -> object:
    """Return what identifies a verdict: when it changes, the user is notified."""
    if verdict is None:
        return None
    cause = verdict.cause
    if cause is None:
        return verdict.status, len(verdict.run.ranks), verdict.run.missing
    comm = cause.comm.key if cause.comm else None
    return verdict.status, cause.kind, comm, cause.seq, verdict.diverging_ranks
