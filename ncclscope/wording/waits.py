"""Who waits in a call, for whom, and what keeps those from it."""

from __future__ import annotations

from ncclscope.model import Activity
from ncclscope.untrusted import printable
from ncclscope.wording.names import plural
from ncclscope.wording.phrase import Phrase


class Keeps(Phrase):
    """What keeps a rank from a call in which others wait; it follows its name."""

    STOPPED = "is stopped by a signal or a debugger (state T): kill -CONT resumes it"
    DEVICE = "is blocked on its device by work that is not a recorded call"
    OTHERS = "waits in that call for the others"
    IDLE = "waits for a request from its engine"
    KEPT = "had not come to the call when it ended: its note says what kept it"
    NOTED = "may still come to the call: its note says what keeps it"
    TRANSFER = "waits for the other side of its last call, or is busy after it"
    LATE = "is late, or in an endless loop"
    ASLEEP = "is in one sleep, and goes on by itself when that ends"
    UNKNOWN = "is busy or stuck outside of any recorded call"


class Place(Phrase):
    """Where ranks are, or what became of them; it follows their names."""

    NOT_RECORDED = "not recorded"
    NO_RECORD = "left no record"
    EXITED = "exited normally"
    NO_CALL = "in no recorded call"
    HAS_ENDED = "has ended"
    ENDED = "ended"
    ENDED_WELL = "ended normally"
    ENDED_WITH = "ended with {}"
    STOPPED = "is stopped at {}"
    IDLE = "idle, in dequeue"
    IS_DEAD = "is dead, gone or stuck ({})"
    LIVED_ON = "its peers lived on"
    POSTED_NONE = "has posted no call"
    NEVER_CAME = "never came: its last call is {call} on {comm}"


class Wait(Phrase):
    """That ranks wait in a call, which others have not posted."""

    ALL_POSTED = "{}: all members posted the corresponding call"
    ALL_PASSED = "{}: all members went past this point without such a call"
    ARE_BEHIND = "{0} {0:are} still at an earlier step or call of {0:their} engine"
    MORE_WAIT = "more ranks wait for {} than are missing"
    LARGER_NUMBER = (
        "{waiting} {waiting:wait} in a call that the larger number, {absent}, never posted"
    )
    NOW = "{0} {0:wait}"
    AND_NOW = "{:wait} in it"
    THEN = "{} waited for {:.0f} s"
    AND_THEN = "gave it up after {:.0f} s"
    POSTED = "{posted} posted {where}, and {absent} did not"
    ALONE = "{posted} posted {where}, and {posted:their} peers did not"
    IN_IT = "{waiting} posted {where}, and {waiting:wait} in it; {absent} did not"
    IN = "{ranks} {ranks:wait} in {where}"
    FOR = "{waiting} {waiting:wait} for {whom} in {where}"
    RANK_FOR = "rank {0.rank} waits in {0.call} on {1} for {0.awaited}"
    EACH_OTHER = "Ranks wait for each other: {}."
    PASSED_BY = (
        "{waiting:^} {waiting:wait} in {where}, which {passed} {passed:have} not posted: {reason}."
    )
    WENT_ON = (
        "rank {rank} went on to call {seq} on {comm}, which rank {waiting} posted after this one"
    )
    HELD_UP = "{who:^} {state}; {waiting} {waiting:wait} for it in {call} on {comm}."
    OPEN = "rank {} posted {}; it is not known to have completed"
    POSTED_MORE = (
        "{who:^} posted {calls} more than its peers, from {call} on {comm} on; {waiting} "
        "{waiting:wait} for it."
    )
    POSTED_ELSEWHERE = (
        "{who:^} posted {call} on {comm}, its peers on {other}; {waiting} {waiting:wait} for it."
    )
    VICTIMS = "{victims:^} {victims:wait} for others, and would go on if {ranks} came."
    LAUNCHED_FEWER = (
        "{short:^} launched fewer calls than {short:their} peers, as NCCL counts them: {waiting} "
        "{waiting:wait} in {where}; {doing}."
    )
    LEFT_SEQUENCE = (
        "{who:^} {waiting:wait} {alone}in {where}, which {absent} have not posted: {doing}. "
        "{waiting:They} left the common sequence before {waiting:their} peers, or posted an extra "
        "call."
    )
    NOT_JOINED = (
        "{who:^} {absent:have} not joined {where}, in which {waiting} {waiting:wait}: {doing}."
    )
    NOT_POSTED = (
        "{waiting:^} {waiting:wait} in {where}, which {absent} {absent:have} not posted: {doing}. "
        "The records do not show which side left the common sequence."
    )
    NEVER_JOINED = "{who:^} never joined {where}, in which {waiting} {waiting:wait}. {rest}"
    LATE = (
        "{who:^} {absent:are} late for {where}, in which {waiting} {waiting:wait}: {at} ({shares} "
        "of a core), or in an endless loop."
    )
    ASLEEP = (
        "{who:^} {absent:are} late for {where}, in which {waiting} {waiting:wait}: "
        "{absent:they} {absent:sleep} {at}, and {absent:wake} in {wakes:.0f} s."
    )
    LATE_FOR_ALL = (
        "{who:^} {absent:are} late: {waiting} {waiting:wait}, rank {rank} in {call} on {comm}. "
        "{at}, or in an endless loop."
    )
    ASLEEP_FOR_ALL = (
        "{who:^} {absent:are} late: {waiting} {waiting:wait}, rank {rank} in {call} on {comm}. "
        "{absent:They} {absent:sleep} {at}, and {absent:wake} in {wakes:.0f} s."
    )
    AT_WORK = "It is at work"
    OUTSIDE = "outside of any recorded call"
    ELSEWHERE = (
        "{waiting:^} {waiting:wait} in {where}; {absent} {absent:post} calls on other "
        "communicators, and may still come."
    )
    MAY_COME = "{} may still come to the call"
    WAKES_NOW = "; late: {0} {0:sleep}, and {0:wake} in {1:.0f} s"
    USES_NOW = "; {0} {0:are} at work: late, or in an endless loop"
    MAY_END = "{} may still end the wait"
    MAY_AWAIT = "{others} may wait for {late} outside of the recorded calls, as at a lock"
    WAKES = "rank {} is in one sleep, which ends in {:.0f} s at the latest"
    USES = "rank {}, with the processes that it started, uses {:.0%} of a core"
    HOLDS_SMS = (
        "likely: {0.call.op} on {0.comm} holds SMs for which the cooperative launch of {1.call.op} "
        "on {1.comm} waits on some ranks, and the peers that it needs have launched that one "
        "first. The same order on all ranks, or fewer SMs for {0.comm.backend} (for NCCL: "
        "NCCL_MAX_CTAS), avoids it"
    )


class Lock(Phrase):
    """For whom ranks wait outside of calls: at file locks, at sockets, for work."""

    HELD = "rank {0} waits for a file lock that {1} {1:hold}"
    OWN = "rank {} waits for a file lock of its own, which it or a process that it started holds"
    IN_CALL = "rank {} waits for {} in its call"
    IN_MEETING = "rank {} waits for {} to meet"
    SOCKET = "rank {} waits at a socket for {}"
    WORK = "rank {} waits for work: {}"


class Queue(Phrase):
    """That a process has not read a message queue."""

    UNREAD = "{who} has not read {blocks} of a message queue{of} ({numbers}){wait}"
    MISSED = (
        "{who} has waited in dequeue for {seconds:.0f} s although {blocks} of a message queue{of} "
        "({numbers}) hold messages for it: it missed the notification"
    )
    FOR_ROOM = ", whose writer has waited for room for {:.0f} s"


class Unrecorded(Phrase):
    """What is known of waits in code whose collectives no probe records."""

    CONSTRUCTOR = "the constructor of DistributedDataParallel"
    FORWARD = "the forward of DistributedDataParallel"
    BACKWARD = "the backward of DistributedDataParallel"
    JOIN = "the join of DistributedDataParallel"
    BROADCAST = "a broadcast of parameters by C++"
    USE = "{ranks} {ranks:use} collectives that are not recorded"
    IN = "{ranks} {ranks:wait} in {place}, which is not recorded"
    NOTED = "{ranks} {ranks:wait} {noted}"
    IS_IN = "rank {} is in {}"
    BEEN_IN = (
        "{waiting} {waiting:have} been in {where} for {seconds:.0f} s; no call was recorded since"
    )
    WAITS = "they wait in a collective that no probe records"
    WHO_LEFT = (
        "{waiting:^} {waiting:wait} in {where} for {seconds:.0f} s. Its collectives are not "
        "recorded, so it is unknown which rank left the common sequence."
    )
    FEW_LEFT = (
        "{waiting:^} {waiting:wait} in {where} for {seconds:.0f} s, and {others} {others:are} "
        "elsewhere: {few} left the common sequence."
    )
    FOR_ENDED = (
        "{who:^} {ended:have} ended, and {waiting} {waiting:wait} in {where} for {seconds:.0f} s, "
        "whose collectives are not recorded."
    )
    LOST = "the connection was lost in a call that is not recorded"
    LEFT = (
        "{} left the common sequence, not all the others: their call was matched with a "
        "collective that is not recorded"
    )
    ABORTED = (
        "it was matched with an unrecorded collective of {}, and the library ended the process "
        "because of it"
    )


ACTIVITIES = {
    "ddp_init": Unrecorded.CONSTRUCTOR,
    "ddp_forward": Unrecorded.FORWARD,
    "ddp_backward": Unrecorded.BACKWARD,
    "ddp_join": Unrecorded.JOIN,
    "broadcast_coalesced": Unrecorded.BROADCAST,
}
"""Activities in which a process posts collectives that no probe records."""


def activity_text(doing: Activity) -> str:
    """Return ``the backward of DistributedDataParallel at train.py:12 step``."""
    what = str(ACTIVITIES[doing.name])
    return f"{what} at {doing.detail}" if doing.detail else what


def launches_cooperatively(library: str, sms: int, of: int) -> str:
    """Say that a library launches kernels cooperatively, and on how many SMs; 0 if not known."""
    size = f", with {plural(sms, 'SM')}" if sms > 0 else ""
    of_all = f" of the GPU's {of}" if size and of > 0 else ""
    return f"{printable(library)} launches its kernels cooperatively{size}{of_all} each"
