"""How processes end, and what the end of a process does to its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.model.activities import RAISED
from ncclscope.untrusted import printable
from ncclscope.wording.names import (
    call_on,
    its,
    numbered,
    rank_text,
    ranks_text,
    sentence,
    site_text,
    verb,
    who_text,
)
from ncclscope.wording.phrase import Phrase

_LONGEST = 240
_ERROR_SHOWN = 120
"""Characters of an exception's text that are shown."""


class End(Phrase):
    """How a process ended, or what shows that it did; the value is its wording."""

    WITH = "it ended with {}"
    RAISED = "it exited after it raised {}"
    EXITED = "it exited normally"
    GONE = "its process is gone"
    NOT_NOTED = "its process is gone, and recorded no end"
    HEARTBEAT = "its heartbeat ends {:.0f} s before its peers'"
    NO_RECORD = "it left no record"
    NO_DUMP = "it left no dump"


@dataclass(frozen=True)
class Ending:
    """The end of a process.

    Attributes:
        code: How it ended.
        detail: The exception or exit status, or the seconds for which its peers lived on.
    """

    code: End
    detail: str | float = ""

    def __str__(self) -> str:
        return self.code.of(self.detail)


@dataclass(frozen=True)
class Ended:
    """How a process ended, to follow its name.

    Attributes:
        error: The exception or status with which it ended; empty without one.
        exited: Whether it exited by itself.
    """

    error: str = ""
    exited: bool = False

    def __str__(self) -> str:
        if self.error:
            return f"ended with {self.error[:_ERROR_SHOWN].rstrip(': ')}"
        return "ended normally" if self.exited else "ended"


HAS_ENDED = "rank {}: the process has ended"
FROM_LINE = "the exception comes from the line that made the call"


def failed_in_call(
    comm: Communicator, call: Call, failing: Sequence[int], errors: Sequence[str], *, past: bool
) -> str:
    """Say that ranks failed in a call in which the other members wait, or in a later one."""
    others = [number for number in comm.ranks if number not in failing]
    how = shorten("; ".join(dict.fromkeys(errors)), _LONGEST, placeholder=" ...")
    return (
        f"{sentence(ranks_text(failing))} failed in {call_on(comm, call)} ({printable(how)}), in "
        f"which {ranks_text(others)} {verb(others, 'wait')}{', or in a later one' if past else ''}."
    )


def posted_by_all(comm: Communicator, call: Call) -> str:
    """Say that all members have posted a call, which is not known to have completed."""
    return (
        f"{ranks_text(comm.ranks)} posted {call_on(comm, call)}; it is not known to have completed "
        f"anywhere"
    )


def raised(rank: Rank) -> str:
    """Return ``rank 3 raised ValueError at train.py:12 step``."""
    noted = rank.activities.get(RAISED)
    return f"rank {rank.rank} raised {printable((noted and noted.detail) or '')[:_LONGEST]}"


def given_up(
    comm: Communicator | None, seq: int | None, call: Call | None, rank: int, waiting: Sequence[int]
) -> str:
    """Say that ranks gave a call up that one rank never joined, and that all went on."""
    return (
        f"Rank {rank} never joined {numbered(comm, seq, call)}; {ranks_text(waiting)} gave it up. "
        f"All of them went on, and exited normally."
    )


def saw_worker_end(engine: str, pid: int | None, detail: str) -> str:
    """Say that an engine saw its worker end."""
    return f"engine {engine} (pid {pid}) saw its worker end: {printable(detail)}"


def ended_in_call(
    run: Run, comm: Communicator, call: Call, failed: Sequence[int], absent: Sequence[int], at: str
) -> str:
    """Say that ranks ended in a call while others wait in code that is not recorded."""
    return (
        f"{sentence(ranks_text(failed))} posted {call_on(comm, call)}{site_text(call)}, and ended "
        f"in it; {who_text(run, absent)} {verb(absent, 'wait')} in {at}, which is not recorded."
    )


def ended_alone_in_call(run: Run, comm: Communicator, call: Call, alone: Sequence[int]) -> str:
    """Say that ranks alone posted a call, and that peers lost the connection to them."""
    return (
        f"{sentence(who_text(run, alone))} alone posted {call_on(comm, call)}{site_text(call)}, "
        f"and ended in it; the others then lost the connection."
    )


def lost_connection(lost: Sequence[int], error: str, ends: Sequence[str]) -> str:
    """Say how the first ranks ended, and that others then lost the connection to them."""
    if not ends:
        return (
            f"{sentence(ranks_text(lost))} ended with lost connections, and no record shows "
            f"which rank ended first."
        )
    how = sentence("; ".join(ends))
    return f"{how}; {ranks_text(lost)} then lost the connection ({error[:_ERROR_SHOWN]})."


def ended_with(rank: int, error: str) -> str:
    """Return ``rank 3 ended with RuntimeError: ...``."""
    return f"rank {rank} ended with {error[:_ERROR_SHOWN]}"


class Failure(Phrase):
    """How a process failed that no rank is recorded to wait for, to follow its name."""

    RAISED = "raised {}, and posted nothing since"
    THEN_RAISED = "then raised {}, and posted nothing since"
    OUTLIVED = "is gone without an exit, unlike its workers"
    STOPPED = "is stopped by a signal (state T)"
    ALL_STOPPED = "are stopped by a signal (state T)"
    NO_EXIT = "{} {} gone without an exit."
    NO_WAIT = "No rank is recorded to wait for another."
    PROGRAM = "The program ended with {}, and no record shows why."
    ENGINE = "the engine (pid {})"
    HELD = "{} has been {} for {:.0f} s, not in its wait for requests"


def dead_together(ranks: Sequence[int], ends: Mapping[int, Ending], wait: str) -> str:
    """Say that ranks are gone, how they ended, and who waits for them."""
    how = "; ".join(f"rank {number}: {end}" for number, end in ends.items())
    if all(end.code is End.NOT_NOTED for end in ends.values()):
        how = "their processes are gone, and recorded no end"
    return f"{sentence(ranks_text(ranks))} are dead or gone ({how}); {wait}."


def seen_by_launcher(run: Run, statuses: Mapping[int, str]) -> str:
    """Say how a launcher saw ranks end that no rank is recorded to wait for."""
    how = " and ".join(dict.fromkeys(statuses.values()))
    return (
        f"{sentence(who_text(run, [*statuses]))} ended with {how}, as {its(statuses)} launcher "
        f"recorded; no rank is recorded to wait for {'it' if len(statuses) == 1 else 'them'}."
    )


def ended_by_launcher(rank: int, status: str) -> str:
    """Say with what status a launcher saw one rank end first."""
    return f"rank {rank}: its launcher saw it end with {status}, before it ended any other"


def seen_by_engine(run: Run, rank: int) -> str:
    """Say that an engine ended its workers after one of them had ended."""
    return (
        f"{sentence(rank_text(run, rank))} ended unexpectedly, and its engine ended the other "
        f"workers: no rank is recorded to wait for it."
    )
