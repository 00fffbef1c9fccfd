"""How processes end, and what the end of a process does to its peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.wording.names import (
    call_on,
    call_text,
    made_text,
    rank_text,
    ranks_text,
    sentence,
    verb,
)
from ncclscope.wording.not_joined import wait_for
from ncclscope.wording.phrase import Phrase


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


class Ends(Phrase):
    """That processes ended, and what that did to their peers."""

    HAS_ENDED = "rank {}: the process has ended"
    WITH = "rank {} ended with {:.120}"
    RAISED = "rank {} raised {:.240}"
    FAILED_IN = "{failing:^} failed in {where} ({how}), in which {others} {others:wait}{later}."
    OR_LATER = ", or in a later one"
    ALL_POSTED = "{} posted {}; it is not known to have completed anywhere"
    FROM_LINE = "the exception comes from the line that made the call"
    GIVEN_UP = (
        "Rank {rank} never joined {where}; {waiting} gave it up. All of them went on, and exited "
        "normally."
    )
    IN_CALL = (
        "{failed:^} posted {where}, and ended in it; {who} {absent:wait} in {at}, which is not "
        "recorded."
    )
    ALONE_IN_CALL = "{:^} alone posted {}, and ended in it; the others then lost the connection."
    ALL_LOST = "{:^} ended with lost connections, and no record shows which rank ended first."
    THEN_LOST = "{how:^}; {lost} then lost the connection ({error:.120})."
    SAW_WORKER = "engine {} (pid {}) saw its worker end: {}"
    TOGETHER = "{ranks:^} are dead or gone ({how}); {wait}."
    NONE_NOTED = "their processes are gone, and recorded no end"
    SEEN_BY_LAUNCHER = (
        "{who:^} ended with {how}, as {ranks:their} launcher recorded; no rank is recorded to wait "
        "for {ranks:them}."
    )
    BY_LAUNCHER = "rank {}: its launcher saw it end with {}, before it ended any other"
    SEEN_BY_ENGINE = (
        "{:^} ended unexpectedly, and its engine ended the other workers: no rank is recorded to "
        "wait for it."
    )


class Failure(Phrase):
    """How a process failed that no rank is recorded to wait for, to follow its name."""

    RAISED = "raised {}, and posted nothing since"
    THEN_RAISED = "then raised {}, and posted nothing since"
    OUTLIVED = "is gone without an exit, unlike its workers"
    STOPPED = "{:are} stopped by a signal (state T)"
    NO_EXIT = "{0:^} {0:are} gone without an exit."
    NO_WAIT = "No rank is recorded to wait for another."
    PROGRAM = "The program ended with {}, and no record shows why."
    ENGINE = "the engine (pid {})"
    HELD = "{} has been {} for {:.0f} s, not in its wait for requests"


HAVE_NOT_COMPLETED = "its peers wait for it: they have not completed the call that it has"
STUCK_PROCESS = "the process is stuck, not the call: none of its threads has run since"
SILENT = (
    "a process that is stopped by a signal, or stuck in C code that keeps Python's lock, has no "
    "heartbeat either"
)
MAY_LIE_ELSEWHERE = "its ring may lie on another host, or was not copied"
MAY_BE_ALIVE = "a live process may have written no dump either"
SERVER_ENDED = "the process that served the store ended before"


def missed(run: Run, rank: int, how: object, code: str, wait: str) -> str:
    """Say that a rank is gone, and who waits for it.

    The code is ``exited``, ``stuck`` where it may live, ``no_record``, or ``dead``.
    """
    who = sentence(rank_text(run, rank))
    state = {
        "exited": f"{who} ended without this call ({how})",
        "stuck": f"{who} is dead, gone or stuck ({how})",
        "no_record": f"Rank {rank} left no record: it is dead, or was not traced",
    }.get(code, f"{who} is dead or gone ({how})")
    return f"{state}; {wait}."


def several_missing(ranks: Sequence[int], wait: str, *, dumps: bool) -> str:
    """Say which ranks left no record, or no dumps, and who waits for any of them."""
    return f"{sentence(ranks_text(ranks))} left no {'dumps' if dumps else 'record'}; {wait}."


def most_missing(waiting: Sequence[int]) -> str:
    """Say that waiting ranks may be a minority, as most have no record."""
    return (
        f"most records are missing: {ranks_text(waiting)} may have posted another call than the "
        f"others"
    )


def without_store(
    run: Run, rank: int, waiting: Sequence[int], comm: Communicator, call: Call,
    host: int | None, how: object,
) -> str:  # fmt: skip
    """Say that a rank ended as its store was gone, and, where it is known, who served that."""
    lost = f"{rank_text(run, rank)} ended, as it lost its connection to its store"
    wait = wait_for(waiting, f"rank {rank}", comm, call)
    if host is None:
        return f"{sentence(lost)}, which no rank is known to have served; {wait}."
    return (
        f"{sentence(rank_text(run, host))}, which served the store, is dead or gone ({how}): "
        f"{lost}, and {wait}."
    )


def ended_before(host: int, rank: int) -> str:
    """Say that a rank that served the store ended before another one lost it."""
    return f"rank {host} ended before rank {rank} lost the store"


def ended_with(rank: int, error: object) -> str:
    """Say with which exception a rank ended."""
    return f"rank {rank} ended with {error}"


def made(rank: Rank, label: str, last: Call) -> str:
    """Say how many calls a rank made, and which was the last."""
    return f"it made {made_text([rank])}, the last {call_text(last)} on {label}"


def extra_or_too_early(waiting: Sequence[int], ended: Sequence[int]) -> str:
    """Say that those who wait or those who exited may have diverged."""
    return (
        f"as many ranks wait as have exited: {ranks_text(waiting)} may have posted an extra call, "
        f"or {ranks_text(ended)} exited too early"
    )


def completed_and_failed(
    past: Sequence[int], comm: Communicator, call: Call, inside: Sequence[int], seconds: float
) -> str:
    """Say which ranks failed after a call in which others wait."""
    return (
        f"{sentence(ranks_text(past))} completed {call_on(comm, call)}, and failed; "
        f"{ranks_text(inside)} {verb(inside, 'wait')} in it for {seconds:.0f} s."
    )


def silent(
    run: Run, rank: Rank, comm: Communicator, call: Call, past: Sequence[int], how: object
) -> str:
    """Say that a process is dead, stopped or stuck in a call that all have posted."""
    state = "stopped or stuck" if rank.alive else "dead, gone or stopped"
    if rank.details.get("stopped"):
        state = "stopped by a signal"
    done = f"only {ranks_text(past)} completed" if past else "none has completed"
    return (
        f"{sentence(rank_text(run, rank.rank))} is {state} ({how}), in {call_on(comm, call)}, "
        f"which all have posted and {done}."
    )
