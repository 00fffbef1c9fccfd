"""Who waits in a call, for whom, and what keeps those from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ncclscope.model import Activity, Call, Communicator, Rank, Run
from ncclscope.untrusted import printable
from ncclscope.wording.names import (
    be,
    call_on,
    call_text,
    comm_text,
    have,
    its,
    plural,
    rank_text,
    ranks_text,
    sentence,
    verb,
    who_text,
)
from ncclscope.wording.phrase import Phrase


class Keeps(Phrase):
    """What keeps a rank from a call in which others wait; the value follows its name."""

    STOPPED = "is stopped by a signal or a debugger (state T): kill -CONT resumes it"
    DEVICE = "is blocked on its device by work that is not a recorded call"
    OTHERS = "waits in that call for the others"
    IDLE = "waits for a request from its engine"
    KEPT = "had not come to the call when it ended: its note says what kept it"
    NOTED = "may still come to the call: its note says what keeps it"
    TRANSFER = "waits for the other side of its last call, or is busy after it"
    LATE = "is late, or in an endless loop"
    UNKNOWN = "is busy or stuck outside of any recorded call"


class Place(Phrase):
    """Where ranks without a pending call are."""

    NOT_RECORDED = "not recorded"
    NO_RECORD = "left no record"
    EXITED = "exited normally"
    NO_CALL = "in no recorded call"
    HAS_ENDED = "has ended"
    STOPPED = "is stopped at {}"
    IDLE = "idle, in dequeue"


def same_role(comms: Sequence[Communicator], *, posted: bool) -> str:
    """Say that groups of the same role posted the corresponding call, or went on without one."""
    names = "; ".join(comm_text(comm) for comm in comms[:3])
    if posted:
        return f"{names}: all members posted the corresponding call"
    return f"{names}: all members went past this point without such a call"


def by_numbers(waiting: Sequence[int], absent: Sequence[int], *, absent_diverged: bool) -> str:
    """Say by which numbers one side of a call diverged."""
    if absent_diverged:
        return f"more ranks wait for {ranks_text(absent)} than are missing"
    return (
        f"{ranks_text(waiting)} {verb(waiting, 'wait')} in a call that the larger number, "
        f"{ranks_text(absent)}, never posted"
    )


def wait_text(waiting: Sequence[int], gave_up: float | None) -> tuple[str, str]:
    """Say that ranks wait, or waited until they gave up: with their names, and after.

    Args:
        waiting: The ranks.
        gave_up: After how many seconds they gave up; None where they still wait.
    """
    if gave_up is None:
        wait = verb(waiting, "wait")
        return f"{ranks_text(waiting)} {wait}", f"{wait} in it"
    seconds = f"{gave_up:.0f} s"
    return f"{ranks_text(waiting)} waited for {seconds}", f"gave it up after {seconds}"


def posted_alone(
    comm: Communicator, call: Call, posted: Sequence[int], absent: Sequence[int] = ()
) -> str:
    """Say that ranks posted a call, and others, or their peers, did not."""
    others = ranks_text(absent) if absent else f"{its(posted)} peers"
    return f"{ranks_text(posted)} posted {call_on(comm, call)}, and {others} did not"


def passed_by(
    comm: Communicator, call: Call, waiting: Sequence[int], passed: Sequence[int], reason: str
) -> str:
    """Say that ranks wait in a call that others have not posted, and to which those went on."""
    return (
        f"{sentence(ranks_text(waiting))} {verb(waiting, 'wait')} in {call_on(comm, call)}, which "
        f"{ranks_text(passed)} {have(passed)} not posted: {reason}."
    )


def went_on_to(rank: Rank, seq: int, comm: Communicator, waiting: Rank) -> str:
    """Say that a rank went on to a call that one which waits posted later."""
    return (
        f"rank {rank.rank} went on to call {seq} on {comm_text(comm)}, which rank {waiting.rank} "
        f"posted after this one"
    )


def unread(
    reader: Rank, writer: Rank | None, blocks: Sequence[int], seconds: float | None, *, missed: bool
) -> str:
    """Say that a process has not read blocks of a message queue.

    Args:
        reader: The process.
        writer: The process that writes the queue, if it left a record.
        blocks: Numbers of the blocks.
        seconds: How long the reader, or else the writer, has waited; None where neither waits.
        missed: Whether the reader waits although there are messages.
    """
    who = f"rank {reader.rank}" if reader.rank >= 0 else f"pid {reader.pid}"
    what = f"{plural(len(blocks), 'block')} of a message queue"
    what += "" if writer is None else f" of pid {writer.pid}"
    what += f" ({', '.join(map(str, blocks[:8]))})"
    if missed:
        return (
            f"{who} has waited in dequeue for {seconds:.0f} s although {what} hold messages for "
            f"it: it missed the notification"
        )
    wait = "" if seconds is None else f", whose writer has waited for room for {seconds:.0f} s"
    return f"{who} has not read {what}{wait}"


def launches_cooperatively(library: str, sms: int, of: int) -> str:
    """Say that a library launches kernels cooperatively, and on how many SMs; 0 if not known."""
    size = f", with {plural(sms, 'SM')}" if sms > 0 else ""
    of_all = f" of the GPU's {of}" if size and of > 0 else ""
    return f"{printable(library)} launches its kernels cooperatively{size}{of_all} each"


def holds_sms(held: tuple[Communicator, Call], waiting: tuple[Communicator, Call]) -> str:
    """Say that one library's call holds the SMs for which another's cooperative launch waits."""
    (other, holder), (comm, call) = held, waiting
    return (
        f"likely: {holder.op} on {comm_text(other)} holds SMs for which the cooperative launch of "
        f"{call.op} on {comm_text(comm)} waits on some ranks, and the peers that it needs have "
        f"launched that one first. The same order on all ranks, or fewer SMs for {other.backend} "
        f"(for NCCL: NCCL_MAX_CTAS), avoids it"
    )


def held_up(
    run: Run, comm: Communicator, call: Call, rank: int, waiting: Sequence[int], state: str
) -> str:
    """Say that ranks wait for one in a call, and in what state that one is."""
    return (
        f"{sentence(rank_text(run, rank))} {state}; {ranks_text(waiting)} {verb(waiting, 'wait')} "
        f"for it in {call_text(call)} on {comm_text(comm)}."
    )


def is_dead(how: object) -> str:
    """Return that a rank is gone, to follow its name."""
    return f"is dead, gone or stuck ({how or 'its peers lived on'})"


def whereabouts(comm: Communicator | None, last: Call | None) -> str:
    """Return what the last call of a rank is that never came, to follow its name."""
    if comm is None or last is None:
        return "has posted no call"
    return f"never came: its last call is {call_text(last)} on {comm_text(comm)}"


def open_call(rank: int, call: Call) -> str:
    """Say that a rank posted a call which may not have completed."""
    return f"rank {rank} posted {call_text(call)}; it is not known to have completed"


def waits_for(rank: int, comm: Communicator, call: Call, awaited: Iterable[int]) -> str:
    """Say in which call a rank waits, and for whom."""
    return f"rank {rank} waits in {call_text(call)} on {comm_text(comm)} for {ranks_text(awaited)}"


def circle(lines: Sequence[str]) -> str:
    """Say that ranks wait for each other."""
    return f"Ranks wait for each other: {'; '.join(lines[:4])}."


def posted_instead(
    run: Run,
    rank: int,
    call: Call,
    waiting: Sequence[int],
    *,
    more: int,
    instead: Communicator | None,
) -> str:
    """Say that a rank posted calls which its peers did not, and who waits for it.

    Args:
        run: The run.
        rank: The rank.
        call: The first of those calls.
        waiting: The ranks that wait.
        more: The number of calls.
        instead: The communicator on which its peers posted the call; None where they posted none.
    """
    what = f"{call_text(call)} on {comm_text(run.communicators[call.comm])}"
    if instead is None:
        did = f"{plural(more, 'call')} more than its peers, from {what} on"
    else:
        did = f"{what}, its peers on {comm_text(instead)}"
    return (
        f"{sentence(rank_text(run, rank))} posted {did}; {ranks_text(waiting)} "
        f"{verb(waiting, 'wait')} for it."
    )


def victims_follow(victims: Sequence[int], ranks: Sequence[int]) -> str:
    """Say that some ranks wait for others only because these do not come."""
    return (
        f"{sentence(ranks_text(victims))} {verb(victims, 'wait')} for others, and would go on if "
        f"{ranks_text(ranks)} came."
    )


def wait_for(waiting: Sequence[int], whom: str, where: str) -> str:
    """Return that ranks wait for others in a call."""
    return f"{ranks_text(waiting)} {verb(waiting, 'wait')} for {whom} in {where}"


def in_it(comm: Communicator, call: Call, waiting: Sequence[int], absent: Sequence[int]) -> str:
    """Say that ranks posted a call and wait in it, and others did not."""
    return (
        f"{ranks_text(waiting)} posted {call_on(comm, call)}, and {verb(waiting, 'wait')} in it; "
        f"{ranks_text(absent)} did not"
    )


def launched_fewer(
    comm: Communicator, call: Call, short: Sequence[int], waiting: Sequence[int], doing: str
) -> str:
    """Say that ranks launched fewer calls than peers, and what those do that are absent."""
    return (
        f"{sentence(ranks_text(short))} launched fewer calls than {its(short)} peers, as NCCL "
        f"counts them: {ranks_text(waiting)} {verb(waiting, 'wait')} in {call_on(comm, call)}; "
        f"{doing}."
    )


def left_sequence(
    run: Run,
    comm: Communicator,
    call: Call,
    sides: tuple[Sequence[int], Sequence[int]],
    doing: str,
) -> str:
    """Say that few ranks wait in a call that most have not posted: (the few, the others)."""
    waiting, absent = sides
    alone, they = ("alone ", "It") if len(waiting) == 1 else ("", "They")
    return (
        f"{sentence(who_text(run, waiting))} {verb(waiting, 'wait')} {alone}in "
        f"{call_on(comm, call)}, which {ranks_text(absent)} have not posted: {doing}. {they} left "
        f"the common sequence before {its(waiting)} peers, or posted an extra call."
    )


def not_joined(
    run: Run,
    comm: Communicator,
    call: Call,
    sides: tuple[Sequence[int], Sequence[int]],
    doing: str,
) -> str:
    """Say that few ranks have not joined a call in which most wait: (those that wait, the few)."""
    waiting, absent = sides
    return (
        f"{sentence(who_text(run, absent))} {have(absent)} not joined {call_on(comm, call)}, in "
        f"which {ranks_text(waiting)} {verb(waiting, 'wait')}: {doing}."
    )


def not_posted(
    comm: Communicator, call: Call, waiting: Sequence[int], absent: Sequence[int], doing: str
) -> str:
    """Say that as many ranks wait in a call as have not posted it."""
    return (
        f"{sentence(ranks_text(waiting))} {verb(waiting, 'wait')} in {call_on(comm, call)}, which "
        f"{ranks_text(absent)} {have(absent)} not posted: {doing}. The records do not show which "
        f"side left the common sequence."
    )


def never_joined(
    run: Run, absent: Sequence[int], where: str, waiting: Sequence[int], rest: str
) -> str:
    """Say that ranks never joined a call, and what is unknown of others."""
    return (
        f"{sentence(who_text(run, absent))} never joined {where}, in which {ranks_text(waiting)} "
        f"{verb(waiting, 'wait')}. {rest}"
    )


def wait_text_in(waiting: Sequence[int], where: str) -> str:
    """Return ``ranks 0 1 wait in call 5 on tp:0 of ranks 0-2``."""
    return f"{ranks_text(waiting)} {verb(waiting, 'wait')} in {where}"


def hidden_in(ranks: Sequence[int], place: str, noted: str) -> str:
    """Return in which calls ranks wait that are not recorded.

    Args:
        ranks: The ranks.
        place: Where a stack or an activity shows them; empty where that is not known.
        noted: What they noted that they wait for, to follow "wait".
    """
    if not place:
        return f"{ranks_text(ranks)} {verb(ranks, 'use')} collectives that are not recorded"
    wait = f"{ranks_text(ranks)} {verb(ranks, 'wait')}"
    return f"{wait} {noted}" if noted else f"{wait} in {place}, which is not recorded"


ACTIVITIES = {
    "ddp_init": "the constructor of DistributedDataParallel",
    "ddp_forward": "the forward of DistributedDataParallel",
    "ddp_backward": "the backward of DistributedDataParallel",
    "ddp_join": "the join of DistributedDataParallel",
    "broadcast_coalesced": "a broadcast of parameters by C++",
}
"""Activities in which a process posts collectives that no probe records."""


class Unrecorded(Phrase):
    """What follows from collectives that are not recorded."""

    WAITS = "they wait in a collective that no probe records"
    IS_IN = "rank {} is in {}"
    LOST = "the connection was lost in a call that is not recorded"
    LEFT = (
        "{} left the common sequence, not all the others: their call was matched with a "
        "collective that is not recorded"
    )
    ABORTED = (
        "it was matched with an unrecorded collective of {}, and the library ended the process "
        "because of it"
    )


def activity_text(doing: Activity) -> str:
    """Return ``the backward of DistributedDataParallel at train.py:12 step``."""
    what = ACTIVITIES[doing.name]
    return f"{what} at {doing.detail}" if doing.detail else what


def been_in(waiting: Sequence[int], where: str, seconds: float) -> str:
    """Say for how long ranks have been in code without a recorded call."""
    return (
        f"{ranks_text(waiting)} {have(waiting)} been in {where} for {seconds:.0f} s; no call was "
        f"recorded since"
    )


def wait_in(waiting: Sequence[int], where: str, seconds: float, others: Sequence[int] = ()) -> str:
    """Say that ranks wait in such code, and that the smaller side left, if others are elsewhere."""
    wait = f"{sentence(ranks_text(waiting))} {verb(waiting, 'wait')} in {where} for {seconds:.0f} s"
    if not others:
        return (
            f"{wait}. Its collectives are not recorded, so it is unknown which rank left the "
            f"common sequence."
        )
    few = min(others, waiting, key=len)
    return (
        f"{wait}, and {ranks_text(others)} {be(others)} elsewhere: {ranks_text(few)} left the "
        f"common sequence."
    )


def wait_for_ended(
    run: Run, ended: Sequence[int], waiting: Sequence[int], where: str, seconds: float
) -> str:
    """Say that ranks wait in such code, and others have ended."""
    return (
        f"{sentence(who_text(run, ended))} {have(ended)} ended, and {ranks_text(waiting)} "
        f"{verb(waiting, 'wait')} in {where} for {seconds:.0f} s, whose collectives are not "
        f"recorded."
    )


class Late(Phrase):
    """What follows for ranks that are late."""

    MAY_COME = "{} may still come to the call"
    USES = "rank {}, with the processes that it started, uses {:.0%} of a core"


def late_for_all(
    run: Run,
    absent: Sequence[int],
    waiting: Sequence[int],
    first: tuple[int, Communicator, Call],
    at: str,
) -> str:
    """Say that all ranks wait for late ones, the first in a call; `at`: where those are."""
    rank, comm, call = first
    return (
        f"{sentence(who_text(run, absent))} {be(absent)} late: {ranks_text(waiting)} "
        f"{verb(waiting, 'wait')}, rank {rank} in {call_text(call)} on {comm_text(comm)}. "
        f"{at or 'It is at work'}, or in an endless loop."
    )


def late_for(
    run: Run,
    absent: Sequence[int],
    waiting: Sequence[int],
    where: str,
    at: str,
    shares: Iterable[float],
) -> str:
    """Say that ranks are late for a call, and what share of a core each uses."""
    listed = ", ".join(f"{share:.0%}" for share in shares)
    return (
        f"{sentence(who_text(run, absent))} {be(absent)} late for {where}, in which "
        f"{ranks_text(waiting)} {verb(waiting, 'wait')}: {at or 'at work'} ({listed} of a core), "
        f"or in an endless loop."
    )


def elsewhere(absent: Sequence[int], waiting: Sequence[int], where: str) -> str:
    """Say that ranks wait in a call, and others post calls on other communicators."""
    return (
        f"{sentence(ranks_text(waiting))} {verb(waiting, 'wait')} in {where}; {ranks_text(absent)} "
        f"{verb(absent, 'post')} calls on other communicators, and may still come."
    )
