"""Sentences about calls and transfers that all have posted and that do not complete."""

from __future__ import annotations

from ncclscope.model.transfer import Transfer
from ncclscope.untrusted import printable
from ncclscope.wording.names import plural
from ncclscope.wording.phrase import Phrase


class Stall(Phrase):
    """What does not complete, and what is known of it."""

    NO_RANK = "no rank diverged"
    NO_RANK_IN_RECORDS = "no rank diverged in what was recorded"
    REASON = "a link, a device or the library is stuck; the program's call order is consistent"
    UNRECORDED = (
        "a rank posted more or fewer unrecorded calls than its peers, or a link, a device or the "
        "library is stuck"
    )
    TAGS = (
        "the two ranks gave the transfer different tags, or a link or the library is stuck; all "
        "else that is recorded of the two halves agrees"
    )
    TAGS_MAY_DIFFER = "their tags differ, which are not recorded, or the transfer does not complete"
    ITSELF = "no rank diverged, the transfer itself does not complete"
    DROPPED = "the program may have dropped the work of this isend, which frees the buffer"
    EARLIER_WORK = "an earlier kernel or copy on the same streams does not finish"
    BY_LOAD = (
        "the GPUs wait in a collective, judging by their load; only progress on the device shows "
        "in which one (NCCLSCOPE_DEVICE_PROGRESS=1)"
    )
    IN_TIMEOUT = "within its timeout"
    IN_DUMPS = "when the dumps were written"
    FOR = "for {:.0f} s"
    LISTED_AS_STARTED = "all dumps were written long after the last call and list it as started"
    ALIVE = "all ranks stayed alive for at least {:.0f} s after it"
    BOTH_ALIVE = "both ranks stayed alive for at least {:.0f} s after it"
    ABORTED = "{} aborted it, or recorded calls after its timeout"
    TIMED_OUT = "{} ended because it had timed out"
    NONE_COMPLETED = (
        "All ranks of {comm} have posted call {call.seq}, {call}, and none has completed it "
        "{time}: {agreement}, the call itself does not complete."
    )
    MAY_BE_BEHIND = (
        "All ranks of {comm} have posted call {call.seq}, {call}, and none has completed it "
        "{time}. It may be queued behind {first} of rank {rank}, which is not known to have "
        "completed."
    )
    BEHIND = (
        "rank {rank} posted it behind {call}, which not all of {parts} are known to have joined"
    )
    NONE_REACHED = (
        "All ranks of {comm} have posted call {call.seq}, {call}, and no device has reached it for "
        "{seconds:.0f} s: {agreement}, earlier work blocks their streams."
    )
    SOME_COMPLETED = (
        "All ranks of {comm} have posted call {call.seq}, {call}; {past} finished it, and {inside} "
        "did not for {seconds:.0f} s: {agreement}, the call itself does not complete."
    )
    POSTED = "{comm.ranks} posted #{call.seq} on {comm}, {call}; {how}"
    NONE = "none completed it"
    ONLY = "only {} completed it"
    NO_DEVICE = "no device has entered it"
    BEFORE = "{} before it completed"
    SPIN = (
        "All ranks have posted the same calls and none for {:.0f} s, and all GPUs run kernels that "
        "touch no memory: no rank diverged, a collective on {} does not complete."
    )
    SOME_COMM = "some communicator"
    AS_MANY = "{} posted equally many calls on each communicator, and none for {:.0f} s"
    TRANSFER = (
        "Rank {rank} has posted {call} on {comm}, rank {other} the receive for it, and neither has "
        "completed for {seconds:.0f} s: {why}."
    )
    HALVES = "both halves of transfer {} from rank {} to rank {} are posted; neither is completed"
    WENT_ON = "rank {} posted later calls without waiting"
    CROSSED = (
        "{before} posted it before #{seq} on {comm}, which another thread posted, and {after} "
        "after it: on one stream, each would wait for the other"
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
