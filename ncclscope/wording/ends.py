"""How processes end, and what the end of a process does to its peers."""

from __future__ import annotations

from dataclasses import dataclass

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
    SEEN_BY_NONE = (
        "{who:^} {gone:are} gone without a recorded end, and {left} {left:have} posted no call "
        "since, for {seconds:.0f} s; no rank is recorded to wait for {gone:them}."
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


class Dead(Phrase):
    """That ranks wait for a process that ended, or left no record."""

    EXITED = "{who:^} ended without this call ({how}); {wait}."
    STUCK = "{who:^} is dead, gone or stuck ({how}); {wait}."
    GONE = "{who:^} is dead or gone ({how}); {wait}."
    NO_RECORD = "Rank {number} left no record: it is dead, or was not traced; {wait}."
    NO_RECORDS = "{:^} left no record; {}."
    NO_DUMPS = "{:^} left no dumps; {}."
    FEW_RECORDS = "most records are missing: {} may have posted another call than the others"
    NO_SERVER = (
        "{who:^} ended, as it lost its connection to its store, which no rank is known to have "
        "served; {wait}."
    )
    SERVER = (
        "{host:^}, which served the store, is dead or gone ({how}): {who} ended, as it lost its "
        "connection to its store, and {wait}."
    )
    SERVER_ENDED = "the process that served the store ended before"
    ENDED_BEFORE = "rank {} ended before rank {} lost the store"
    WITH = "rank {} ended with {}"
    MADE = "it made {}, the last {} on {}"
    TOO_EARLY = (
        "as many ranks wait as have exited: {} may have posted an extra call, or {} exited too "
        "early"
    )
    FAILED_PAST = (
        "{past:^} completed {where}, and failed; {inside} {inside:wait} in it for {seconds:.0f} s."
    )
    NOT_COMPLETED = "its peers wait for it: they have not completed the call that it has"
    SILENT = "{who:^} is {state} ({how}), in {where}, which all have posted and {done}."
    MAY_BE_STOPPED = "dead, gone or stopped"
    MAY_BE_STUCK = "stopped or stuck"
    BY_SIGNAL = "stopped by a signal"
    ONLY_DONE = "only {} completed"
    NONE_DONE = "none has completed"
    STUCK_PROCESS = "the process is stuck, not the call: none of its threads has run since"
    NO_HEARTBEAT = (
        "a process that is stopped by a signal, or stuck in C code that keeps Python's lock, has "
        "no heartbeat either"
    )
    RING_ELSEWHERE = "its ring may lie on another host, or was not copied"
    NO_DUMP_YET = "a live process may have written no dump either"
