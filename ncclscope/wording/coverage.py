"""What of a job is not recorded."""

from __future__ import annotations

from ncclscope.wording.phrase import Phrase


class Gap(Phrase):
    """A gap in what is recorded."""

    UNREADABLE = "the records of {} cannot be read, and are left out"
    NO_RANK_TRACED = (
        "no rank is traced, so only stacks show what the processes do; start the job with "
        "`ncclscope run -- COMMAND`"
    )
    NOT_EVERY_RANK_TRACED = (
        "not every rank is traced, so only stacks show what the processes do; start the job with "
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
