"""Sends and receives without another side."""

from __future__ import annotations

from ncclscope.wording.phrase import Phrase


class Stuck(Phrase):
    """Why a transfer is stuck, with the numbers of ranks."""

    TIMEOUT_ENDED = "its timeout ended rank {}"
    ENDED_WITHOUT = "rank {} ended normally without its half"
    GAVE_UP = "rank {} did not complete it within its timeout"
    QUIET = "{} have made no call for {:.0f} s"
    DUMPED_AT_TIMEOUT = "the dumps were written when a call timed out"
    ALL_QUIET = "all dumps were written long after the last call"
    WAITS_FOR_IT = "rank {} waits for rank {} itself, in another call"
    OTHERS_COMPLETED = "rank {} has completed all transfers before it that its ring kept"


class Half(Phrase):
    """That one half of a transfer is missing, and whose."""

    NO_SERVER = ": a server without requests looks the same"
    HELD_UP = "ranks that wait for a rank which waits itself are held up by this one"
    NEWEST = "rank {}: {}, its newest call"
    LAST_CALL = "the last call of rank {} is {} on {}, {}"
    NO_RECEIVE = (
        "{who:^} {waiting:wait} in {call}{any} on {comm}{site}, and {peer} {peers:have} posted no "
        "receive for it."
    )
    NO_SEND = (
        "{who:^} {waiting:wait} in {call}{any} on {comm}{site}, and {peer} {peers:have} posted no "
        "send for it."
    )
    FROM_ANY = " from any rank"
    SEVERAL_WAIT = "{} diverged: several ranks wait for it, and it waits in no transfer itself"
    COUNTS = "{} to rank {} from all ranks, {} there"
    STOPPED = (
        "{who:^} {ranks:are} {state}; {waiting} {waiting:wait} for {ranks:their} half of transfers "
        "on {comm}."
    )
    BY_SIGNAL = "stopped by a signal"
    NO_HEARTBEAT = "dead, gone or stopped (no heartbeat for seconds)"
    LACKS = (
        "rank {rank} is in {call}, transfer {number} between it and rank {peer}, which has posted "
        "no other half"
    )
    WAITS_IN_NONE = "it waits in no transfer itself"
    FEWER = (
        "it has posted up to transfer {} with its neighbours, fewer than all others, which have "
        "reached {}"
    )
    MORE = (
        "it has posted up to transfer {} with its neighbours, more than all others, which have "
        "reached {}"
    )
    SHORT_OF = (
        "it has posted {} of them, and all others have reached transfer {} with their neighbours"
    )
