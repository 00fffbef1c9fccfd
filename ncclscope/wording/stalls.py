"""Sentences about calls and transfers that all have posted and that do not complete."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Call, Communicator
from ncclscope.model.transfer import Transfer
from ncclscope.untrusted import printable
from ncclscope.wording.names import (
    call_text,
    call_there,
    comm_text,
    plural,
    ranks_text,
)

ALL, BOTH = "all ranks", "both ranks"
AGREE = "no rank diverged"
AGREE_IN_RECORDS = "no rank diverged in what was recorded"
REASON = "a link, a device or the library is stuck; the program's call order is consistent"
UNRECORDED = (
    "a rank posted more or fewer unrecorded calls than its peers, or a link, a device or the "
    "library is stuck"
)
TAGS = (
    "the two ranks gave the transfer different tags, or a link or the library is stuck; all else "
    "that is recorded of the two halves agrees"
)
TAGS_MAY_DIFFER = "their tags differ, which are not recorded, or the transfer does not complete"
ITSELF = "no rank diverged, the transfer itself does not complete"
DROPPED = "the program may have dropped the work of this isend, which frees the buffer"
EARLIER_WORK = "an earlier kernel or copy on the same streams does not finish"
BY_LOAD = (
    "the GPUs wait in a collective, judging by their load; only progress on the device shows in "
    "which one (NCCLSCOPE_DEVICE_PROGRESS=1)"
)
IN_TIMEOUT = "within its timeout"
IN_DUMPS = "when the dumps were written"
NOT_ENTERED = "; no device has entered it"
LISTED_AS_STARTED = "all dumps were written long after the last call and list it as started"


def stayed_alive(who: str, seconds: float) -> str:
    """Say for how long processes lived after a call."""
    return f"{who} stayed alive for at least {seconds:.0f} s after it"


def aborted(ranks: Sequence[int]) -> str:
    """Say which ranks gave a call up."""
    return f"{ranks_text(ranks)} aborted it, or recorded calls after its timeout"


def ended_in_timeout(ranks: Sequence[int]) -> str:
    """Say which ranks the timeout of a call ended."""
    return f"{ranks_text(ranks)} ended because it had timed out"


def _all_posted(comm: Communicator, call: Call) -> str:
    return f"All ranks of {comm_text(comm)} have posted call {call.seq}, {call_text(call)}"


def none_completed(comm: Communicator, call: Call, time: str, agreement: str) -> str:
    """Say which call all ranks have posted and none has completed."""
    return (
        f"{_all_posted(comm, call)}, and none has completed it {time}: {agreement}, the call "
        f"itself does not complete."
    )


def none_reached(comm: Communicator, call: Call, seconds: float, agreement: str) -> str:
    """Say which call all ranks have posted and no device has reached."""
    return (
        f"{_all_posted(comm, call)}, and no device has reached it for {seconds:.0f} s: "
        f"{agreement}, earlier work blocks their streams."
    )


def some_completed(
    comm: Communicator,
    call: Call,
    past: Sequence[int],
    inside: Sequence[int],
    seconds: float,
    agreement: str,
) -> str:
    """Say which call all ranks have posted and only some have completed."""
    return (
        f"{_all_posted(comm, call)}; {ranks_text(past)} finished it, and {ranks_text(inside)} did "
        f"not for {seconds:.0f} s: {agreement}, the call itself does not complete."
    )


def posted(comm: Communicator, call: Call, rest: str) -> str:
    """Say that all ranks have posted a call, and how far that came."""
    where = f"#{call.seq} on {comm_text(comm)}"
    return f"{ranks_text(comm.ranks)} posted {where}, {call_text(call)}{rest}"


def before_completed(call: Call) -> str:
    """Say how many calls before one completed."""
    return f"{plural(call.seq - 1, 'call')} before it completed"


def all_spin(comm: Communicator | None, seconds: float) -> str:
    """Say that all GPUs run kernels that touch no memory, as in a collective."""
    where = f"on {comm_text(comm)}" if comm is not None else "on some communicator"
    return (
        f"All ranks have posted the same calls and none for {seconds:.0f} s, and all GPUs run "
        f"kernels that touch no memory: no rank diverged, a collective {where} does not complete."
    )


def as_many(ranks: Sequence[int], seconds: float) -> str:
    """Say that ranks posted equally many calls."""
    return (
        f"{ranks_text(ranks)} posted equally many calls on each communicator, and none for "
        f"{seconds:.0f} s"
    )


def transfer(
    comm: Communicator, call: Call, rank: int, other: int, seconds: float, why: str
) -> str:
    """Say which send and receive do not complete."""
    return (
        f"Rank {rank} has posted {call_there(comm, call)}, rank {other} the receive "
        f"for it, and neither has completed for {seconds:.0f} s: {why}."
    )


def both_halves(rank: int, other: int, number: int) -> str:
    """Say that both halves of a transfer are posted."""
    return (
        f"both halves of transfer {number} from rank {rank} to rank {other} are posted; neither is "
        f"completed"
    )


def went_on(rank: int) -> str:
    """Say that a rank posted calls after a transfer."""
    return f"rank {rank} posted later calls without waiting"


def crossed(comm: Communicator, seq: int, before: Sequence[int], after: Sequence[int]) -> str:
    """Say which ranks posted a call before one of another thread, and which after it."""
    return (
        f"{ranks_text(before)} posted it before #{seq} on {comm_text(comm)}, which another thread "
        f"posted, and {ranks_text(after)} after it: on one stream, each would wait for the other"
    )


def request(
    end: Transfer, name: str, more: int, seconds: float, missing: str, *, over: bool, latent: bool
) -> str:
    """Say which request of an engine, and how many more, wait or waited for KV blocks, and why."""
    likewise = f" ({plural(more, 'more request')} likewise)" if more else ""
    what = f"Request {printable(end.request or end.id)} of {name}{likewise}"
    did = f" has waited {seconds:.0f} s for"
    if end.direction != "recv":
        return f"{what}{':' if latent else did} {missing}."
    if not over:
        did += f" {plural(end.blocks, 'KV block') if end.blocks else 'KV blocks'}"
    else:
        did = " got KV blocks" if end.state == "completed" else " did not get its KV blocks"
    return f"{what}{did}: {missing}."


def end_state(end: Transfer, name: str, seconds: float) -> str:
    """Say in which state one end of a transfer is, and for how long."""
    what = "receives" if end.direction == "recv" else "sends"
    phase = f" ({printable(end.phase).replace('_', ' ')})" if end.phase else ""
    return f"{name} {what} transfer {printable(end.id)}: {end.state}{phase} for {seconds:.0f} s"
