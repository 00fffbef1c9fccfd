"""What the rings of a soak say: hashes of all ranks, or where they diverged."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Call, Rank, Run


@dataclass(frozen=True)
class Sequences:
    """One communicator's calls on all of its members.

    Attributes:
        label: Its name.
        ranks: Its members.
        calls: By member, how many it made.
        hashes: By member, the running hash of all of them.
    """

    label: str
    ranks: tuple[int, ...]
    calls: tuple[int, ...]
    hashes: tuple[int, ...]

    @property
    def equal(self) -> bool:
        """Whether all members made the same calls in the same order."""
        return len(set(zip(self.calls, self.hashes, strict=True))) == 1


def sequences(run: Run) -> list[Sequences]:
    """Return what was posted on each communicator.

    Raises:
        ValueError: A member's log does not reach back to its first call.
    """
    found = []
    for key, comm in run.communicators.items():
        if comm.creates_groups:
            continue
        logs = [run.by_rank[rank].logs[key] for rank in comm.ranks]
        if not all(log.rooted for log in logs):
            raise ValueError(f"hashes of {comm.label} do not begin with its first call")
        calls = tuple(log.calls for log in logs)
        hashes = tuple(log.fingerprint(log.calls) for log in logs)
        found.append(Sequences(comm.label, comm.ranks, calls, hashes))
    return sorted(found, key=lambda one: (one.label, one.ranks))


@dataclass(frozen=True)
class Divergence:
    """Where ranks diverged, as the verdict has it.

    Attributes:
        verdict: The verdict.
        step: First step in which a rank made one of the calls that the verdict sets side by
            side; None where it has none.
    """

    verdict: Verdict
    step: int | None


def divergence(run: Run, *, stall_seconds: float) -> Divergence:
    """Find out where ranks diverged."""
    verdict = diagnose(run, stall_seconds=stall_seconds)
    cause = verdict.cause
    if cause is None:
        return Divergence(verdict, None)
    steps = [
        _step(rank, call)
        for call in (cause.odd, cause.peers)
        if call is not None
        for rank in run.ranks
    ]
    return Divergence(verdict, min((step for step in steps if step is not None), default=None))


def _step(rank: Rank, call: Call) -> int | None:
    """Return the step in which a rank made the call of that number on that communicator."""
    log = rank.logs.get(call.comm)
    if log is None or not log.first <= call.seq <= log.calls:
        return None
    position = log.call(call.seq).position
    place = bisect_right([step.position for step in rank.steps], position)
    return rank.steps[place - 1].number if place else None
