"""Verdicts on runs without a cause, and on several jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.wording.phrase import Phrase


class Why(Phrase):
    """Why a run without a cause is ``ok``, ``incomplete`` or ``unknown``."""

    AGREE = (
        "All ranks agree in their recorded calls: on each communicator, all members posted the "
        "same calls in the same order, as far as they have come."
    )
    ALL_OTHERS_AGREE = "{} All other recorded calls agree, as far as the ranks have come."
    OTHERS_AGREE = "{} The others agree as far as they go."
    OTHERS_AGREE_IN_IT = "{} The others agree."
    NONE_OF_OTHERS = "{} The others have posted no call."
    START = "{} The others have posted no call yet: the job may be starting."
    NO_COLLECTIVE = "No collective was recorded."
    DIFFER = "On {} the ranks differ in call {} and completed calls after it."
    NOT_COMPARED = "{} Later calls there cannot be compared."
    DAMAGED = "Some records of {} are damaged and cannot be read."
    LACKING = "The records of {} lack a communicator on which their peers completed calls."
    CUT_SHORT = "The records of {} lack the last calls that their peers completed."
    CUT_OFF = (
        "{:^} ended by an error of a connection to a peer, and no record shows whose end was the "
        "first."
    )
    GO_ON = "Some ranks go on. {} A thread of it that is late looks the same."
    MOVES = "The job moves: {} posted calls within the {:.0f} s between two samples."
    CLIENTS = (
        "All ranks wait for work, and their server has {} of clients: stacks do not show whether "
        "these wait for answers."
    )
    ONE_PROCESS = "There is only one process, and none to compare it with."
    STAYS = " It did not move for {:.0f} s: it is at {}."
    HAD_ENDED = "{:^} had ended when the processes were sampled, and no record shows how."
    WORKERS_WAIT = "{} Its workers wait for work."
    NO_MODEL = (
        "{:^} was in no sample in its wait for requests, and no worker in its model: stacks do not "
        "show whether requests wait for it."
    )
    NO_ENGINE = (
        "{0:^} {0:wait} for work, and {0:their} engine was not sampled: it may have requests, on "
        "another host or in a process of another name."
    )
    SILENT = (
        "All ranks wait for input and have posted no call for {:.0f} s: a server without requests "
        "looks the same."
    )
    ALL_WAIT = "All ranks wait for work, none for another rank."
    OTHERS_WAIT = "{:^} exited. All other ranks wait for work, none for another rank."
    ALL_MOVE = "All ranks move. None differs from the others."
    MOST_MOVE = "{} of {} move. No rank appears to be stuck."
    STILL = "{:^} did not move for {:.0f} s, and no data source shows why."
    STILL_AT = "{:^} did not move for {:.0f} s: {}."
    IS_AT = "rank {} is at {}"
    NOT_EXITED = "{0:^} exited in order, {1} did not. "
    NONE_YET = "No rank has posted a call yet."
    STEPS = "{0:^} {0:run} engine steps."
    QUIET = (
        "No rank has posted a call for {:.0f} s, and the records do not show whether the job is "
        "idle or hangs."
    )
    WAS_QUIET = (
        "No rank had posted a call for {:.0f} s when the processes ended, and the records do not "
        "show whether the job was idle or hung."
    )
    EXITED = "All processes exited normally."
    PARTLY = "{} But not all calls of the job are recorded."
    NO_CALL = "No call was recorded, and no record shows how the job ended."
    NO_RANK = "{} recorded calls without a rank, on no communicator of another process."
    ONE = "One process"
    UNSIZED = (
        "No dump shows how many ranks the job has: {dumps} left one, and {inside} {inside:wait} in "
        "a call that others may not have joined."
    )
    LEFT_OPEN = (
        "{0:^} {0:have} calls that are not known to have completed, long after the last one."
    )
    UNFED = (
        "{0:^} {0:wait} in a queue of {0:their} own process, in which no other Python thread runs "
        "that could fill it."
    )
    GONE_EARLY = "{0:^} {0:are} gone without a recorded end, seconds before other ranks."
    NO_END = "{0:^} recorded no end, though the other ranks exited normally."
    HAD_WAITED = "{:^} had waited for {:.0f} s when the processes ended{}."
    RAISED = "{:^} raised in {}, which did not complete."
    MORE = "And {} more."
    FROM_DUMPS = "source: Flight Recorder dumps, which hold calls that no probe recorded"
    AT_THE_SAME_TIME = "a job of {} ran at the same time"
    STARTED_THESE = "rank {} of another job started these ranks"
    ANOTHER_JOB = "another job ran at the same time: {}"
    STARTED_BY = "Job started by rank {}"


def too_short(seconds: float | None, limit: float) -> str:
    """Return the clause that a wait is too short for a hang."""
    since = "" if seconds is None else f", for {seconds:.0f} s now"
    return f"{since}; a hang is reported from {limit:.0f} s on"


def not_recorded(unseen: Sequence[str]) -> str:
    """Return what is not recorded, to follow a sentence; empty where nothing is known of."""
    if not unseen:
        return ""
    more = len(unseen) - 2
    listed = "; ".join(unseen[:2]) + (f"; and {more} more" if more > 0 else "")
    return f" Not recorded: {listed}."


class Gap(Phrase):
    """A gap in what is recorded."""

    UNREADABLE = "the records of {} cannot be read, and are left out"
    NOT_TRACED = (
        "{} rank is traced, so only stacks show what the processes do; start the job with "
        "`ncclscope run -- COMMAND`"
    )
    BARE = "{}: no calls of these processes are recorded"
    NO_RECORD = "{} left no record"
    UNTRACED = "{} could not be recorded: {}"
    STACK = "{}: the stack could not be read"
    PROBE_FAILED = "a probe failed ({}): later calls are not recorded"
    PEERLESS = "{}: NCCL did not launch sends or receives on {}, so that their peers are not known"
    DAMAGED_TRANSFERS = (
        "{}: records of sends or receives on {} are damaged, or their peer is no member"
    )
    NO_CALL = "{}: no call on {} is recorded, where peers completed calls that need all members"
    NO_LAST_CALLS = (
        "{}: the last calls on {} are not recorded, which peers completed and which need all "
        "members"
    )
    NCCL = "{}: NCCL reported {} calls, {} are recorded"
    RAS = "{}: NCCL launched {} calls, {} are recorded"
    FLIGHT_RECORDER = "{}: Flight Recorder dumps hold {} calls, {} are recorded"
