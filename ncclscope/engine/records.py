"""The recorded calls of a run, prepared for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from ncclscope.engine.sequences.align import align_windows
from ncclscope.model import Rank, Run, State
from ncclscope.model.log import CallLog
from ncclscope.model.signature import ROOTED_OPS

DEAD_SECONDS = 2.0
"""A process whose heartbeat ends this much before its peers' is dead: two heartbeat intervals."""
_COMPARED = 64
"""Newest common calls of two ranks, and ranks, whose times are compared."""


class Records:
    """The logs of a run with common numbers, and how long each rank has been quiet.

    Args:
        run: The records.
        stall_seconds: Seconds without a call after which waiting ranks, whose processes have
            ended, are reported as stuck.
        live_stall_seconds: The same for processes that still run and may just be busy.
    """

    def __init__(self, run: Run, *, stall_seconds: float, live_stall_seconds: float) -> None:
        self.run = run
        self.stall_seconds = stall_seconds
        self.live_stall_seconds = live_stall_seconds

    def logs(self, key: str) -> Mapping[int, CallLog]:
        """Return the members' logs of a communicator, with common numbers, by global rank."""
        if key not in self._logs:
            self._logs[key] = align_windows(
                {rank.rank: rank.logs[key] for rank in self.run.members(key)}
            )
        return self._logs[key]

    def recorded(self, key: str) -> Mapping[int, CallLog]:
        """Return the logs of a communicator's members as they were recorded."""
        return self.logs(key)

    @cached_property
    def _logs(self) -> dict[str, Mapping[int, CallLog]]:
        return {}

    def quiet_seconds(self, rank: Rank) -> float | None:
        """Return the seconds from a rank's last call to its last heartbeat; None when unknown.

        A call that has completed counts from when the last member of its host posted it.

        Both times are by the rank's own clock. A watch of other hosts has measured the seconds by
        a monotonic clock, and only then are they in the details.
        """
        known = self._quiet.get(rank.rank)
        if known is None or known[0] is not rank:
            known = self._quiet[rank.rank] = rank, _quiet_seconds(rank, self._completed_after(rank))
        return known[1]

    def _completed_after(self, rank: Rank) -> int:
        """Return when a rank's last call cannot have completed yet: all had to post it first.

        By the clock of its host; 0 where that is not known, or the job is large.
        """
        last, boot = rank.last_call(), rank.details.get("boot_id")
        if last is None or last.state is not State.COMPLETED or last.op in ROOTED_OPS or not boot:
            return 0
        if len(self.run.ranks) > _COMPARED:
            return 0
        members = [one for one in self.run.members(last.comm) if one.details.get("boot_id") == boot]
        logs = [self.logs(last.comm)[one.rank] for one in members]
        calls = (log.call(last.seq) for log in logs if log.first <= last.seq <= log.calls)
        return max((call.time_ns or 0 for call in calls), default=0)

    @cached_property
    def _quiet(self) -> dict[int, tuple[Rank, float | None]]:
        return {}

    def still_seconds(self, rank: Rank) -> float | None:
        """Return the seconds for which a rank has posted nothing; None when unknown.

        As :attr:`quiet_seconds`, except for a process that is gone and whose last heartbeat is
        older than its last call: a call that keeps Python's lock keeps the heartbeat, too. It
        posted nothing until the last heartbeat of a process of its host, dead or not.
        """
        quiet = self.quiet_seconds(rank)
        boot, last = rank.details.get("boot_id"), rank.last_call(transfers=True)
        if quiet != 0.0 or rank.alive is not False or not boot or last is None:
            return quiet
        seen = [
            one.last_seen_ns
            for one in self.run.ranks
            if one.last_seen_ns is not None and one.details.get("boot_id") == boot
        ]
        return max(0.0, (max(seen) - (last.time_ns or max(seen))) / 1e9)

    @cached_property
    def all_quiet(self) -> bool:
        """Whether all ranks dumped long after their last call, and dumps report completion."""
        return all(
            rank.details.get("dumped") is True
            and (
                rank.details.get("tells")
                or any(calls and calls[0].state is State.COMPLETED for calls in rank.p2p.values())
            )
            for rank in self.run.ranks
        )

    def longest_common_quiet(self, ranks: Iterable[int]) -> float | None:
        """Return for how many seconds all given ranks have been quiet; None below the threshold.

        As for :attr:`stalled`, processes that still run may just be busy. One that exited in order
        has been stuck in nothing.
        """
        shortest: float | None = None
        for number in ranks:
            rank = self.run.by_rank[number]
            if rank.ended_well:
                return None
            seconds = self.quiet_seconds(rank)
            limit = self.live_stall_seconds if rank.alive else self.stall_seconds
            if seconds is None or seconds < limit:
                return None
            shortest = seconds if shortest is None else min(shortest, seconds)
        return shortest

    @cached_property
    def timeless(self) -> bool:
        """Whether the input has no heartbeats, so that waiting times are unknown."""
        return all(rank.last_seen_ns is None for rank in self.run.ranks)


def have_one_time(rank: Rank, other: Rank) -> bool:
    """Return whether two processes are of one host, or posted a common call at one time."""
    boot = rank.details.get("boot_id")
    if boot and boot == other.details.get("boot_id"):
        return True
    for key in rank.logs.keys() & other.logs.keys():
        logs = rank.logs[key], other.logs[key]
        stop = min(log.calls for log in logs) + 1
        start = min(stop, max(stop - _COMPARED, *(log.first for log in logs)))
        mine, theirs = (
            {call.seq: call.time_ns for call in log.span(start, stop) if call.time_ns}
            for log in logs
        )
        both = mine.keys() & theirs.keys()
        if any(abs(mine[seq] - theirs[seq]) < DEAD_SECONDS * 1e9 for seq in both):
            return True
    return False


def _quiet_seconds(rank: Rank, completed_ns: int) -> float | None:
    if (measured := rank.details.get("quiet_seconds")) is not None:
        return float(measured)
    if rank.last_seen_ns is None:
        return None
    last = [rank.last_call(), *rank.last_transfers().values()]
    times = [call.time_ns for call in last if call is not None and call.time_ns]
    since = max([*times, completed_ns] if times else [], default=rank.started_ns)
    return None if since is None else max(0.0, (rank.last_seen_ns - since) / 1e9)


def silent_seconds(run: Run, process: Rank) -> float:
    """Return for how long others of its host lived on after the last heartbeat of a process.

    Who kills a whole job ends all of them at once: at least as many lived on as did not.
    """
    boot, seen = process.details.get("boot_id"), process.last_seen_ns
    if not boot or seen is None:
        return 0.0
    ends = [
        one.last_seen_ns - seen
        for one in (*run.ranks, *run.others)
        if one.last_seen_ns is not None and one.details.get("boot_id") == boot
    ]
    later = [one for one in ends if one >= DEAD_SECONDS * 1e9]
    return max(later) / 1e9 if later and 2 * len(later) >= len(ends) else 0.0
