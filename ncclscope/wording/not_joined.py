"""Sentences about calls in which ranks wait, and which others have not posted."""

from __future__ import annotations

from ncclscope.model import Call, Run
from ncclscope.model.signature import P2P_OPS
from ncclscope.wording.names import call_text, comm_text
from ncclscope.wording.phrase import Phrase


class Join(Phrase):
    """Who posted a call, who waits in it, and who never joined."""

    POSTED = "{} posted {}"
    POSTED_SO = "{} posted {}, and {}"
    POSTED_ONLY = "{} posted {}; only {} completed it"
    POSTED_NONE = "{} posted {}; none completed it"
    WAIT = "{ranks} posted {where}{site}, and {ranks:wait} in it"
    NO_RECORD = "no record of rank {} was found"
    NEVER = "{who:^} never joined {where}, in which {waits}{was}."
    NOT_REACHED = "{who:^} {ranks:do} not reach {where}, in which {waits}{was}."
    NEVER_BY = "{:^} posted {}, which {} never joined."
    ALONE = "{who:^} {ranks:wait} in {where}{site}, which {absent} never posted: {why}."
    MOST_DO_NOT = "most ranks do not make this call here"
    THEY_WAIT = "they wait {} for {:.0f} s"
    IT_WAITS = "it waits {} for {:.0f} s"
    OUTSIDE = "activity of {} outside of recorded calls is unknown"
    HELD_UP = (
        "{} may have posted an extra call, or {} may be held up before it: they made no call since"
    )
    KEY_NOT_SET = (
        "{} may have gone on without setting key '{}', or {} may wait for a key that nobody sets"
    )
    KEYS_NOT_SET = (
        "{} may have gone on without setting their keys, or {} may wait for keys that nobody sets"
    )
    ALIVE = "rank {} stayed alive for {:.0f} s after that"
    NO_TIMES = "no rank moves: the input does not say how long any rank has waited"
    NOT_ON_DEVICE = (
        "rank {} posted it, too, but its device has not reached call {} on {}: earlier work blocks "
        "its stream"
    )
    NOT_SINCE = (
        "rank {rank} posted it, too, but has completed no call since #{head.seq} on {comm}, "
        "{head}, which all members have joined"
    )
    COUNT = "rank {} posted {} calls there"
    NONE_UNDER_WAY = "rank {} has no call under way"


class Was(Phrase):
    """What ranks do instead of joining a call; it follows who waits in that."""

    STOPPED = "; a signal has stopped its process"
    ALL_STOPPED = "; a signal has stopped their processes"
    IDLE = "; {:they are} idle, in dequeue{why}"
    ENGINE = "; {}"
    INSIDE = "; it has been in {} of its engine for {:.0f} s"
    THREAD = "; a thread of it ended with {}"
    RAISED = "; it raised {} {:.0f} s ago, and posted nothing since"
    IS = "; it is {}"
    NOW = "; it {}"
    LAST = "; its last call, {call} on {comm.label}, is {call.state.word}"
    NOTHING = "; it has posted nothing"


def last_call(run: Run, rank: int, last: Call) -> str:
    """Say what the last call of a rank is, and where it was posted."""
    seq = "" if last.op in P2P_OPS else f"#{last.seq} "
    return (
        f"the last call of rank {rank} is {seq}on {comm_text(run.communicators[last.comm])}, "
        f"{call_text(last)}, {last.state.word}" + (f", posted at {last.site}" if last.site else "")
    )
