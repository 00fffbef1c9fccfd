"""Why a finding is less than certain, and what might be so instead."""

from __future__ import annotations

from ncclscope.wording.phrase import Phrase


class Doubt(Phrase):
    """What the records leave open, or what may be so as well."""

    WAITS_FOR = "rank {} waits for {}"
    MAY_WAIT = "it may wait for {}"
    DIFFER_THEMSELVES = "without {}, whose own calls differ, its peers are no majority"
    ONCE_MORE = "{} may have gone round once more, together"
    ANSWERED = "{0:^} {0:wait} within a round of which other ranks have answered an earlier call"
    NOT_THEIR_CALL = "{} may not belong in this call, which then waits for nobody"
    DID_THE_SAME = "{:^} did the same on {}."
    SAME_BEFORE = "its peers' calls up to there are the same as its own"
    WHICH_IS_WRONG = "the records do not show which of them is wrong"
    LOST = "{} lost a connection: the peer may have ended first"
    UNSEEN = "{0} {0:wait} for something that is not seen"
    OTHER_THREAD = (
        "another thread of {} waits for other ranks, and the one that never came may wait for it"
    )
    HELD_UP = "{} may have been held up by {}"
    RIVAL = "a repair of {} instead would release all ranks that wait as well"
    NOT_SEEN = "what {} did is not seen, and may account for the wait as well"
    STILL_WAIT = "{} would still wait: something else is wrong, too"
    ONLY = "Only {} would release all {}."
    ONE_SIDE = (
        "The record of call {seq} on {comm} is damaged on one side, so it is unknown whether "
        "{ranks} agree in it."
    )
    DAMAGED = "It is unknown whether {} joined it: the record is damaged."
    UNTRACED = "It is unknown whether {0} joined it: {0:they are} not recorded."
    NOT_RECORDED = "{} may be there as well: what is not recorded does not show"
    ROOT = (
        "{0:^} {0:are} in {1}, which others have completed: members may disagree about its root, "
        "which is not recorded."
    )
    USUAL = "; earlier pauses of {} between calls were as long"
    LATE = "it hung: a rank that is merely late looks the same"
    SERVER_ENDED = "a server that ended while it had no requests looks the same"
    SERVER = (
        "It sends what they receive in this {}, and its process waits for input: a server without "
        "requests looks the same."
    )
    RUNNING = "a dump of a running job can look the same"
    UNRECORDED = "{} {} in calls that are not recorded"
    SNAPSHOT = "which ranks diverged, according to the process snapshot"
    NOT_THE_CAUSE = (
        "rank {} ended with {} {:.0f} s after its last call: this is how the job was stopped, not "
        "why its peers wait"
    )
    LEFT = "Rank {} raised {} in it, and waits there no more."
    COUNTS = "{:^}, as NCCL counts them; in the records no rank differs."
    WHICH_CALL = "which call it is: counts do not show it"
    AT_NOW = "stacks: rank {} is at {} now"
