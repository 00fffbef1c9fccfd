"""What the processes noted that they do besides their calls: meet, wait at a store, compile, load.

A note is recorded, unlike a stack: it says since when, and outlives the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ncclscope.engine.records import Records
from ncclscope.engine.waits.waits import PendingCall
from ncclscope.model import Activity, Call, Fact, Rank, Run
from ncclscope.model.activities import (
    AGAIN_NS,
    COMM_INIT,
    COMPILE,
    INIT,
    LOAD,
    RAISED,
    STORE_SET,
    STORE_WAIT,
)
from ncclscope.untrusted import printable
from ncclscope.wording.notes import CONNECTING, SHOWN, Note, activity_text, lasted

_AT_WORK = (COMPILE, LOAD)
_WAITING = (INIT, COMM_INIT, STORE_WAIT)
_AT_ONCE_NS = 1_000_000_000
_OF_STORES = ("DistStoreError", "DistNetworkError")
"""The exceptions that torch's stores raise."""
_KEYS = "keys:"
"""In the text of their exceptions if a key did not come in time."""
_NEARLY = 0.9
"""A wait that lasted for this part of its timeout timed out."""


@dataclass(frozen=True)
class Noted:
    """An activity that a process is in.

    Attributes:
        seconds: How long it has lasted.
        activity: The note.
    """

    seconds: float
    activity: Activity

    @property
    def name(self) -> str:
        """Its name, see :mod:`ncclscope.model.activities`."""
        return self.activity.name

    @property
    def what(self) -> tuple[str, str, int]:
        """What it is, by which the same activities of several processes are equal."""
        if self.name == COMM_INIT:
            return self.name, "", self.activity.number
        return self.name, self.activity.detail or "", 0

    @property
    def text(self) -> str:
        """What it is, to follow "it is": ``in torch.compile of step (train.py:33)``."""
        return activity_text(self.activity)

    @property
    def method(self) -> str:
        """What a process does at a store: ``get``, ``wait``, ``connect``, ..."""
        return _asked(self.activity)[0]

    @property
    def key(self) -> str:
        """The key that a process waits for at a store; empty where it waits for none."""
        method, key = _asked(self.activity)
        return key if self.name == STORE_WAIT and method not in CONNECTING else ""

    @property
    def is_barrier(self) -> bool:
        """Whether all processes have to come to the store: by its method or by its key."""
        return self.method == "barrier" or "barrier" in self.key

    @property
    def is_work(self) -> bool:
        """Whether the process works there, and waits for no other."""
        return self.name in _AT_WORK

    @property
    def clause(self) -> str:
        """The activity and its duration: ``has been in torch.compile of step ... for 84 s``."""
        return lasted(self.activity, self.seconds)


def lasting(rank: Rank, name: str) -> Noted | None:
    """Return an activity that had not ended at the process's last heartbeat; else None."""
    activity = rank.activities.get(name)
    if activity is None or activity.until_ns is not None:
        return None
    last_seen = rank.last_seen_ns or 0  # there is no heartbeat in the first second
    seconds = max(0.0, (last_seen - activity.since_ns) / 1e9)
    return Noted(seconds, activity)


def given_up(rank: Rank, name: str) -> Noted | None:
    """Return a wait that an exception ended, and with it the process; else None."""
    activity, error = rank.activities.get(name), rank.activities.get(RAISED)
    if activity is None or activity.until_ns is None or error is None:
        return None
    after = error.since_ns - activity.until_ns
    if not rank.details.get("ended_with") or not abs(after) < _AT_ONCE_NS:
        return None
    if name == INIT and rank.logs:
        return None  # it has come through
    if (
        name == STORE_WAIT
        and _asked(activity)[0] == "connect"
        and _KEYS in rank.details["ended_with"]
    ):
        return None  # it was connected, and C++ waited for a key
    if name == STORE_WAIT and _was_answered(rank, activity):
        return None  # the exception came later
    seconds = (activity.until_ns - activity.since_ns) / 1e9
    return Noted(seconds, activity)


def _was_answered(rank: Rank, wait: Activity) -> bool:
    """Return whether a process went on after a wait at a store, before an exception ended it."""
    until = wait.until_ns or 0
    met = rank.activities.get(INIT)
    if (
        rank.logs
        and met is not None
        and met.since_ns <= wait.since_ns
        and until <= (met.until_ns or 0)
    ):
        return True
    last = rank.last_call(transfers=True)
    if last is not None and (last.time_ns or 0) > until:
        return True
    error = str(rank.details.get("ended_with"))
    timed_out = 0 < _NEARLY * wait.number <= (until - wait.since_ns) / 1e9
    return not timed_out and not error.startswith(_OF_STORES)


def polled(rank: Rank) -> Noted | None:
    """Return what a process asks a store for again and again, as if it waited there.

    A note counts from the first of such questions, see :mod:`ncclscope.model.activities`.
    """
    activity, seen = rank.activities.get(STORE_WAIT), rank.last_seen_ns
    if activity is None or activity.until_ns is None or seen is None:
        return None
    if abs(seen - activity.until_ns) > AGAIN_NS:
        return None
    seconds = (activity.until_ns - activity.since_ns) / 1e9
    return Noted(seconds, replace(activity, until_ns=None))


def seconds_of(rank: Rank, name: str) -> float | None:
    """Return for how long a process is in an activity; None where it is not in it."""
    found = lasting(rank, name)
    return None if found is None else found.seconds


def doing(rank: Rank) -> Noted | None:
    """Return the innermost activity that a process is in, of those that keep it from its calls."""
    found = [one for name in (*_AT_WORK, *_WAITING) if (one := lasting(rank, name)) is not None]
    # The one that began last; a wait at the store that was repeated counts from its first time.
    return max(found, key=lambda one: (one.is_work, one.activity.since_ns), default=None)


def without_waits_beside(run: Run) -> Run:
    """Return a run without those waits at a store during which a rank has posted a call.

    A thread beside waits there, on the ranks that wait for the same as well. It keeps none of them.
    """
    waits = {rank.rank: noted for rank in run.ranks if (noted := lasting(rank, STORE_WAIT))}
    beside = {
        noted.what
        for number, noted in waits.items()
        if (last := run.by_rank[number].last_call(transfers=True)) is not None
        and (last.time_ns or 0) > noted.activity.since_ns
    }
    freed = {number for number, noted in waits.items() if noted.what in beside}
    if not freed:
        return run
    ranks = tuple(_without(rank, STORE_WAIT) if rank.rank in freed else rank for rank in run.ranks)
    return replace(run, ranks=ranks)


def _without(rank: Rank, name: str) -> Rank:
    kept = {one: activity for one, activity in rank.activities.items() if one != name}
    return replace(rank, activities=kept)


def doing_in_common(run: Run, numbers: Sequence[int]) -> Noted | None:
    """Return what some ranks all wait for besides their calls; the shortest wait."""
    found = [doing(rank) for number in numbers if (rank := run.by_rank.get(number)) is not None]
    waits = [one for one in found if one is not None and not one.is_work]
    if len(waits) < len(numbers) or len({one.what for one in waits}) != 1:
        return None
    return min(waits, key=lambda one: one.seconds)


def key_awaited(run: Run, numbers: Sequence[int]) -> Noted | None:
    """Return the wait at the store for a key that some ranks share; None where they differ."""
    wait = doing_in_common(run, numbers)
    return wait if wait is not None and wait.key else None


def wait_for_keys(run: Run, numbers: Sequence[int]) -> bool:
    """Return whether each of some ranks waits at the store for a key of its own."""
    return len(numbers) > 1 and all(key_awaited(run, [number]) is not None for number in numbers)


def key_of(activity: Activity) -> str:
    """Return the key or the address that a process waits for at a store."""
    return _asked(activity)[1]


def _asked(activity: Activity) -> tuple[str, str]:
    """Return the method that a process called at a store, and the key or address it asked for."""
    method, _, key = printable(activity.detail or "")[:SHOWN].partition(" ")
    return method, key


def raised(records: Records, rank: Rank) -> tuple[str, float] | None:
    """Return the newest exception of a process that posted nothing since, and its age in seconds.

    Returns:
        The type and line, such as ``TypeError at train.py:12 step``; None where no exception was
        noted, or the process posted calls after it.
    """
    activity = rank.activities.get(RAISED)
    if activity is None or not activity.detail or rank.last_seen_ns is None:
        return None
    age = max(0.0, (rank.last_seen_ns - activity.since_ns) / 1e9)
    quiet = records.quiet_seconds(rank)
    # The call that raised was recorded just before.
    if quiet is not None and rank.last_call(transfers=True) is not None and age > quiet:
        return None
    return printable(activity.detail)[:SHOWN], age


def raised_in(rank: Rank, call: Call) -> str:
    """Return the exception that a process raised in a call of its own; empty without one.

    It is at the line of the call, and newer than it.
    """
    activity, site = rank.activities.get(RAISED), call.user_site or call.site
    if activity is None or not activity.detail or site is None or not call.time_ns:
        return ""
    what, _, where = printable(activity.detail)[:SHOWN].partition(" at ")
    return what if where == site and activity.since_ns >= call.time_ns else ""


def thread_ended(rank: Rank) -> str:
    """Return the exception that ended a thread of a process that lives on; empty without one."""
    activity = rank.activities.get(RAISED)
    if activity is None or not activity.number or rank.exited or rank.details.get("ended_with"):
        return ""
    return printable(activity.detail or "")[:SHOWN]


def raised_line(records: Records, rank: Rank) -> str:
    """Return the newest exception of a process, whatever it posted since; empty without one."""
    activity = rank.activities.get(RAISED)
    if activity is None or not activity.detail or rank.last_seen_ns is None:
        return ""
    what = printable(activity.detail)[:SHOWN]
    age = max(0.0, (rank.last_seen_ns - activity.since_ns) / 1e9)
    then = "" if raised(records, rank) is None else str(Note.POSTED_NOTHING)
    if activity.number:
        then += str(Note.ENDED_PROCESS if rank.details.get("ended_with") else Note.ENDED_THREAD)
    return Note.RAISED.of(rank.rank, what, age, then)


def last_key_line(rank: Rank) -> Iterator[str]:
    """Yield the last key that a process set at a store, if it set one."""
    own = rank.activities.get(STORE_SET)
    if own is not None and own.detail:
        text = Note.LAST_KEY.of(rank.rank, printable(own.detail)[:SHOWN])
        yield Fact.of_call(text, (), [rank.rank])


def note_lines(records: Records, rank: Rank) -> Iterator[str]:
    """Yield lines of evidence: what a process noted that explains why it is not in a call."""
    number = rank.rank
    if raised(records, rank) is not None or thread_ended(rank):
        yield Fact.of_rank(number, raised_line(records, rank))
    if (now := doing(rank)) is not None:
        yield Fact.of_rank(number, f"rank {number} {now.clause}")
        if now.name == STORE_WAIT:
            yield from last_key_line(rank)


def timeout_lines(records: Records, pending: PendingCall) -> Iterator[str]:
    """Yield when torch gives up a pending call, where its communicator's timeout is recorded."""
    rank, limit = records.run.by_rank[pending.rank], pending.comm.timeout
    if not limit or rank.last_seen_ns is None or pending.call.time_ns is None:
        return
    if rank.exited or rank.alive is False:
        return  # nothing comes any more
    waited = (rank.last_seen_ns - pending.call.time_ns) / 1e9
    if 0 <= waited < limit:
        yield Note.TIMEOUT_COMES.of(pending.comm, limit, limit - waited)


def timeout_text(rank: Rank, noted: Noted) -> str:
    """Return when a wait ends or ended by itself; empty where that is not known."""
    limit = noted.activity.number
    if noted.name not in (INIT, STORE_WAIT) or not limit:
        return ""
    if noted.activity.until_ns is not None:
        timed_out = noted.seconds >= _NEARLY * limit  # else another error ended it
        return Note.TIMEOUT_ENDED.of(rank.rank, limit) if timed_out else ""
    left = limit - noted.seconds
    return Note.TIMEOUT_ENDS.of(rank.rank, limit, f"in {left:.0f} s" if left > 0 else "now")
