"""Watch a running job, and report when its ranks diverge or hang.

A divergence is found by comparing hashes, without waiting. If two ranks have made the same
number of calls on a communicator, their running hashes must be equal. A difference shows as soon
as both have enqueued the call, often long before anything hangs. A hang is found by its duration,
and only while a rank is inside a call: a server without requests is idle, not stuck.

This module does not decide the kind of a divergence or the diverging rank. The analyzers do, and
they run only when there is something to explain, not at every poll.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ncclscope import procfs
from ncclscope.attach.host.locks import with_locks
from ncclscope.engine.processes.device_verdict import ALONE_SECONDS
from ncclscope.engine.sequences.mixed_records import reduced_keys
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.errors import InputError
from ncclscope.model import Rank, Run
from ncclscope.readers import assemble
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.watch.gpu_load import GpuLoad
from ncclscope.watch.hashes import HashComparison
from ncclscope.watch.jobs import Rings, current
from ncclscope.watch.poll import Poll, gist
from ncclscope.watch.requests import RequestWatch, with_waiting_root
from ncclscope.watch.silence import outdated, reserved
from ncclscope.watch.startup import PATIENCE, StartupWatch, patient_verdict
from ncclscope.watch.starvation import Starvation
from ncclscope.watch.transfers import TransferWatch

DEFAULT_STALL = 10.0
_AGAIN = 2.0
"""Seconds between two diagnoses of a moving job whose status is trouble or unknown."""
_REST = 10
"""Time between two diagnoses of communicators whose hashes differ anyway, in durations of one."""
_GROUP_SECONDS = 1.0
"""Seconds that a coalesced group may be in flight on one rank but not yet on another."""
_NEARLY = 0.95
"""Share of the stall limit that counts as reached, as ranks' clocks are read one by one."""


class Watcher:
    """Polls the rings of some directories.

    Args:
        *directories: Directories of the rings; they may not exist yet.
        stall: Seconds without progress inside a call that count as a hang.
        clock: Return seconds by a monotonic clock.
        wall: Return nanoseconds since 1970; called once, together with the first `clock`.
        rings: Rings to poll in place of the directory's, such as those of remote nodes.
        gpus: Load of this host's GPUs, if the ranks run on this host.
    """

    def __init__(
        self,
        *directories: Path,
        stall: float = DEFAULT_STALL,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
        rings: Rings | None = None,
        gpus: GpuLoad | None = None,
    ) -> None:
        self.directories = directories
        self.stall = stall
        self._requests = RequestWatch(stall)
        self._beyond = (TransferWatch(stall), StartupWatch(PATIENCE * stall), self._requests)
        self._starvation = Starvation(PATIENCE * stall)
        self._starved: frozenset[Path] = frozenset()
        self._clock = clock
        self._began = clock()
        self._began_ns = wall()
        self._is_local = rings is None
        self._rings = Rings(*directories) if rings is None else rings
        self._seen: set[Path] = set()
        self._hashes = HashComparison(clock)
        self._verdict: Verdict | None = None
        self._trouble: Verdict | None = None
        self._troubled: set[Path] = set()
        self._examined: object = None
        self._examine_at = 0.0
        self._settled: object = None
        self._gpus = gpus
        self._spins = False
        self._group: tuple[object, float] | None = None
        self._shown: object = None
        self._stuck_now: list[RingCursor] = []
        self._over: tuple[set[Path], float] | None = None
        self._left_out: frozenset[str] = frozenset()
        """Hosts that did not report when the verdict was reached."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The directories as text."""
        return tuple(map(str, self.directories))

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons why some rings could not be read."""
        return tuple(self._rings.notes.values())

    @property
    def untraced(self) -> tuple[Rank, ...]:
        """Processes that are not recorded."""
        return tuple(self._rings.untraced.values())

    @property
    def is_undecided(self) -> bool:
        """Whether another GPU sample, some seconds later, may change the verdict."""
        return self._gpus is not None and self._gpus.is_undecided

    def poll(self) -> Poll:
        """Read new records and return the job's status."""
        now = self._clock()
        self._rings.scan(now, self._wall_ns(now))
        moved = self._rings.poll(now)
        living, past = current(list(self._rings.cursors.values()))
        self._seen.update(cursor.path for cursor in living)
        was_in_trouble = self._trouble is not None
        self._stuck_now = []
        if living:
            self._examine(living, moved, now, past)
            activity = "running" if moved or self._inside(living) else "idle"
        else:
            self._examine_what_is_over([cursor for cursor in past if cursor.path in self._seen])
            activity = "over" if past else "waiting"
        verdict = self._trouble or self._verdict
        status = verdict.status if verdict is not None else "incomplete"
        silent = dict(self._rings.silent)
        if verdict is not None and silent:
            verdict = outdated(verdict, silent, [c.rank for c in living if self._rings.is_lost(c)])
        shown = gist(verdict)
        changed, self._shown = shown != self._shown, shown
        return Poll(
            status=status,
            activity=activity,
            verdict=verdict,
            ranks=tuple(
                sorted(living or past, key=lambda cursor: (cursor.rank, cursor.started_ns))
            ),
            now=now,
            changed=changed and verdict is not None,
            news=self._trouble is not None and not was_in_trouble,
            stuck=frozenset(cursor.path for cursor in self._stuck_now),
            over_for=self._over_for(past if activity == "over" else (), now),
            silent=silent,
        )

    def last_word(self) -> Verdict:
        """Return the final verdict on ended processes, even if none was seen running.

        Raises:
            InputError: Their rings cannot be read.
        """
        return self._trouble or self._verdict or diagnose(self._rings.run())

    def _over_for(self, past: Iterable[RingCursor], now: float) -> float | None:
        """Return the seconds since all processes have ended; a new process resets it."""
        gone = {cursor.path for cursor in past}
        if not gone:
            self._over = None
        elif self._over is None or not gone <= self._over[0]:
            self._over = gone, now
        return None if self._over is None else now - self._over[1]

    # --- when to diagnose --------------------------------------------------------------------

    def _examine(
        self,
        living: Sequence[RingCursor],
        moved: Sequence[RingCursor],
        now: float,
        past: Sequence[RingCursor],
    ) -> None:
        """Run the analyzers if there is something to explain.

        Args:
            living: Cursors of running jobs.
            moved: Cursors that moved since the last poll.
            now: Seconds by the watcher's clock.
            past: Cursors of ended jobs.
        """
        is_left = any(cursor.path in self._troubled for cursor in living)
        if self._trouble is not None and not is_left:
            self._trouble = self._verdict = None  # the processes in trouble have ended
        who = (
            *sorted((one.path, one.rank, one.over, _is_held(one)) for one in living),
            *sorted(self._rings.untraced),
        )
        diverged = self._hashes.compare(living, moved)
        self._spins = self._spins and not moved
        self._starved = self._starvation.held(living, now)
        self._stuck_now = stuck = self._stuck(living, now)
        due = who != self._examined or self._has_other_hosts()
        for other in self._beyond:
            due = other.is_due(living, past, now, self._wall_ns(now)) or due
        self._examined = who
        unknown = self._verdict is not None and self._verdict.status == "unknown"
        if self._trouble is not None or (unknown and moved and not stuck):
            due = due or bool(moved and now >= self._examine_at)
        elif self._group is not None:
            due = due or bool(diverged) or now - self._group[1] >= _GROUP_SECONDS
        elif (still := stuck or self._still(living, now)) and not diverged:
            # A job without trouble is diagnosed once, and again only after it has moved.
            signature = tuple((cursor.path, cursor.signature) for cursor in still)
            due = due or signature != self._settled
            self._settled = signature
            if not stuck and self._gpus_spin(still, signature, now):
                due = due or not self._spins
                self._spins = True
            else:
                self._spins = False
        if diverged and self._rings.scan(now, self._wall_ns(now), at_once=True):
            return  # the next poll judges them with the rings that have just appeared
        if due or (diverged and self._trouble is None):
            self._judge(living, now, stuck)
        if diverged and self._trouble is None and self._group is None:
            self._hashes.accept(diverged)

    def _has_other_hosts(self) -> bool:
        """Return whether a host reports again, or was lost before there was trouble."""
        silent = frozenset(self._rings.silent)
        return bool(self._left_out - silent) or (self._trouble is None and silent != self._left_out)

    def _quiet_seconds(self, cursor: RingCursor, now: float) -> float:
        """Return the seconds without progress; 0 while a rank waits for a processor instead."""
        is_starved = cursor.path in self._starved
        return 0.0 if is_starved else self._rings.seen_at(cursor, now) - cursor.moved_at

    def _stuck(self, living: Sequence[RingCursor], now: float) -> list[RingCursor]:
        """Return the ranks inside a call that have not moved for longer than the limit."""
        quiet = [
            cursor
            for cursor in living
            if not cursor.over and self._quiet_seconds(cursor, now) >= self.stall
        ]
        return self._inside(living, quiet) if quiet else []

    def _still(self, living: Sequence[RingCursor], now: float) -> Sequence[RingCursor]:
        """Return all ranks if none has moved for too long and calls may be in flight.

        If a backend does not report completion, such a job may be idle. Or it may hang, after
        all ranks enqueued the same calls in different orders.
        """
        ranks = [cursor for cursor in living if not cursor.over and cursor.is_member]
        if any(self._rings.is_lost(c) or self._quiet_seconds(c, now) < self.stall for c in ranks):
            return ()
        return ranks if any(cursor.pending() for cursor in ranks) else ()

    def _gpus_spin(self, still: Sequence[RingCursor], signature: object, now: float) -> bool:
        """Return whether the GPUs of ranks that have long enqueued nothing spin."""
        if self._gpus is None or any(now - w.moved_at < ALONE_SECONDS for w in still):
            return False
        return self._gpus.spins([cursor.pid for cursor in still if cursor.pid], signature, now)

    def _inside(
        self, living: Sequence[RingCursor], asked: Sequence[RingCursor] | None = None
    ) -> list[RingCursor]:
        """Return the processes that are inside a call, as far as the backend reveals it.

        If a backend never reports completion, a call counts as complete once all members have
        enqueued it.
        """
        return [
            cursor
            for cursor in (living if asked is None else asked)
            if any(
                cursor.comm_cursors[key].tells or self._is_awaited(living, cursor, key)
                for key in cursor.pending()
            )
        ]

    def _is_awaited(self, living: Sequence[RingCursor], cursor: RingCursor, key: str) -> bool:
        """Return whether another member has yet to enqueue this rank's newest call.

        Args:
            living: Cursors of running jobs.
            cursor: Cursor of this rank.
            key: Key of the communicator.
        """
        own = cursor.comm_cursors[key]
        members = [other for other in living if key in other.comm_cursors]
        if len(members) < len(own.comm.ranks) and not self._rings.silent:
            return True
        # A rank on a host that does not report may have enqueued the call meanwhile.
        return any(
            one.comm_cursors[key].seq < own.seq for one in members if not self._rings.is_lost(one)
        )

    # --- diagnosing --------------------------------------------------------------------------

    def _judge(self, living: Sequence[RingCursor], now: float, stuck: Sequence[RingCursor]) -> None:
        verdict = None
        while verdict is None:
            ranks = self._read([*living, *(c for one in self._beyond for c in one.partners)], now)
            try:
                verdict = self._verdict_on(ranks, living, stuck) if ranks else None
            except InputError as error:
                if not self._rings.leave_out(error):
                    raise
                continue
            silent = self._rings.silent
            self._left_out = frozenset(silent)
            if verdict is None:
                return
        verdict = reserved(verdict, silent, sorted({cursor.rank for cursor in stuck}))
        self._examine_at = now + _AGAIN
        if self._is_group_under_way(living, verdict, now):
            return
        if verdict.status == "hung" and self._starved and not any(c.over for c in living):
            return  # late, as far as one can know; judged again when they have a processor
        if verdict.in_trouble:
            self._trouble = verdict
            self._troubled = {cursor.path for cursor in living}
        else:
            self._verdict, self._trouble = verdict, None

    def _verdict_on(
        self, ranks: Sequence[Rank], living: Sequence[RingCursor], stuck: Sequence[RingCursor]
    ) -> Verdict:
        verdict = self._diagnose(ranks)
        if stuck and not verdict.in_trouble:
            # Other ranks may still move, and their short waits could hide this hang.
            near = {cursor.path for cursor in self._near(living, stuck)}
            alone = self._diagnose_near(ranks, near)
            verdict = alone if alone.in_trouble else verdict
        return verdict

    def _diagnose_near(self, ranks: Sequence[Rank], near: set[Path]) -> Verdict:
        """Diagnose some ranks, and those without which that would name one as without a record."""
        while True:
            kept = [rank for rank in ranks if Path(rank.source) in near]
            verdict = self._diagnose(kept)
            cause = verdict.cause
            about = {*cause.diverging_ranks, *cause.candidate_ranks} if cause is not None else set()
            more = {Path(rank.source) for rank in ranks if rank.rank in about} - near
            if not more:
                return verdict
            near |= more

    def _examine_what_is_over(self, past: Sequence[RingCursor]) -> None:
        """Diagnose an ended job that was seen running."""
        who = tuple(sorted(cursor.path for cursor in past))
        if not past or who == self._examined:
            return
        self._examined = who
        if self._trouble is None:
            ranks = [rank for cursor in past if (rank := cursor.read()) is not None]
            try:
                found = diagnose(self._assembled(ranks)) if ranks else None
            except InputError as error:
                if not self._rings.leave_out(error):
                    raise
                found = None
            if found is None:
                self._examined = None  # their host may answer the next poll
                return
            self._verdict = reserved(found, self._rings.silent, ())
            if self._verdict.in_trouble:
                self._trouble, self._troubled = self._verdict, {cursor.path for cursor in past}

    def _wall_ns(self, now: float) -> int:
        return self._began_ns + int((now - self._began) * 1e9)

    def _read(self, living: Sequence[RingCursor], now: float) -> list[Rank]:
        wall_ns = self._wall_ns(now)
        ranks = []
        for cursor in living:
            rank = cursor.read()
            if rank is not None and rank.alive and not rank.exited:
                still = max(0.0, self._rings.seen_at(cursor, now) - cursor.moved_at)
                spins = {"gpu_spins": True} if self._spins else {}
                rank = replace(rank, details={**rank.details, "still_seconds": still, **spins})
                if not rank.details.get("stopped"):
                    rank = replace(rank, last_seen_ns=wall_ns)  # seen just now
            if rank is not None:
                ranks.append(rank)
        return ranks

    def _diagnose(self, ranks: Sequence[Rank]) -> Verdict:
        began = self._clock()
        run = self._assembled(ranks)
        verdict = patient_verdict(run, self.stall * _NEARLY)
        if (served := with_waiting_root(run, verdict)) is not None:
            verdict = patient_verdict(served, self.stall * _NEARLY)
        self._requests.note(verdict)
        # Their hashes always differ, so that each poll would read all their calls again.
        ended = self._clock()
        rest = max(_AGAIN, _REST * (ended - began))
        self._hashes.leave_out(reduced_keys(run, verdict.run), until=ended + rest)
        return verdict

    def _assembled(self, ranks: Sequence[Rank]) -> Run:
        run = assemble([*ranks, *self.untraced], sources=self.sources)
        return with_locks(run) if self._is_local else run

    def _near(self, living: Sequence[RingCursor], stuck: Sequence[RingCursor]) -> list[RingCursor]:
        """Return the stuck ranks and the members of the communicators that they are stuck on."""
        keys = {key for cursor in stuck for key in cursor.pending()}
        return [cursor for cursor in living if cursor in stuck or keys & cursor.comm_cursors.keys()]

    def _is_group_under_way(
        self, living: Iterable[RingCursor], verdict: Verdict, now: float
    ) -> bool:
        """Return whether ranks differ only in a group that one may not have fully enqueued.

        Args:
            living: Cursors of running jobs.
            verdict: The verdict that reports the difference.
            now: Seconds by the watcher's clock.
        """
        cause = verdict.cause
        key = cause.comm.key if cause is not None and cause.comm is not None else ""
        calls = () if cause is None else (cause.odd, cause.peers)
        is_grouped = any(call is not None and call.group for call in calls)
        on_comm = [cursor.comm_cursors[key] for cursor in living if key in cursor.comm_cursors]
        if cause is None or not is_grouped or not any(one.in_group for one in on_comm):
            self._group = None
            return False
        where = key, cause.seq
        if self._group is None or self._group[0] != where:
            self._group = where, now
        return now - self._group[1] < _GROUP_SECONDS


def _is_held(cursor: RingCursor) -> bool:
    """Return whether a signal has stopped an engine of this host; its workers seem idle."""
    is_here = cursor.rank < 0 and cursor.is_local and bool(cursor.alive)
    return is_here and procfs.is_stopped(cursor.pid)
