"""Who waits in a call, for whom, and what keeps those from it."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Rank
from ncclscope.untrusted import printable
from ncclscope.wording.names import (
    call_on,
    comm_text,
    have,
    its,
    plural,
    ranks_text,
    sentence,
    verb,
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
    """Where ranks without a pending call are, in a drawing of waits; the value is its wording."""

    NOT_RECORDED = "not recorded"
    NO_RECORD = "left no record"
    EXITED = "exited normally"
    NO_CALL = "in no recorded call"


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
