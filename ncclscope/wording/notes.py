"""What processes noted that they do besides their calls."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Activity, Call, Communicator, Rank, Step
from ncclscope.model.activities import COMM_INIT, INIT, STORE_SET, STORE_WAIT
from ncclscope.untrusted import printable
from ncclscope.wording.names import call_text, comm_text, have, plural, ranks_text, site_text

SHOWN = 160
"""Characters of a note that are shown."""
CONNECTING = {"connect": "to connect to", "serve": "for its peers, as the server of"}
"""What a process does at a store without a key, by its method."""


def activity_text(activity: Activity) -> str:
    """Return what an activity is, to follow "in": ``torch.compile of step (train.py:33)``."""
    detail = printable(activity.detail or "")[:SHOWN]
    if activity.name == STORE_WAIT:
        method, _, key = detail.partition(" ")
        if method in CONNECTING:
            return f"{CONNECTING[method]} the store at {key}"
        return f"at the store for key '{key}' ({method})" if key else f"at the store, in {method}"
    if activity.name == INIT:
        return f"init_process_group ({detail})" if detail else "init_process_group"
    if activity.name == COMM_INIT:
        size = f" of {plural(activity.number, 'rank')}" if activity.number else ""
        return f"ncclCommInitRank{size}"
    return detail or activity.name


def lasted(activity: Activity, seconds: float) -> str:
    """Return ``has been in torch.compile of step ... for 84 s``; ``was in`` if it is over."""
    over, waits = activity.until_ns is not None, activity.name == STORE_WAIT
    did = ("waited" if waits else "was in") if over else f"has {'waited' if waits else 'been in'}"
    return f"{did} {activity_text(activity)} for {seconds:.0f} s"


def last_key(rank: Rank) -> str:
    """Say which key a process set last at a store; empty if it set none."""
    own = rank.activities.get(STORE_SET)
    if own is None or not own.detail:
        return ""
    return f"the last key that rank {rank.rank} set is '{printable(own.detail)[:SHOWN]}'"


def raised_before(
    rank: Rank, what: str, seconds: float, *, posted: bool, thread: bool | None
) -> str:
    """Say what a process raised, and how long before its last heartbeat.

    Args:
        rank: The process.
        what: The exception, and its line.
        seconds: How long before the last heartbeat.
        posted: Whether it posted calls since.
        thread: Whether the exception ended a thread alone; None where it ended nothing.
    """
    text = f"rank {rank.rank} raised {what}, {seconds:.0f} s before its last heartbeat"
    text += "" if posted else ", and posted nothing since"
    return text if thread is None else f"{text}; it ended {'a thread' if thread else 'the process'}"


def timeout_comes(comm: Communicator, seconds: float) -> str:
    """Say in how many seconds torch gives up a pending call."""
    return (
        f"torch's timeout for calls on {comm_text(comm)} is {comm.timeout} s: it comes in "
        f"{seconds:.0f} s"
    )


def timeout_of_wait(rank: Rank, limit: int, left: float | None) -> str:
    """Say when the timeout of a wait ends it, in seconds from now; None for the past."""
    text = f"rank {rank.rank}: its timeout of {limit} s"
    if left is None:
        return f"{text} ended the wait"
    return f"{text} ends the wait {f'in {left:.0f} s' if left > 0 else 'now'}"


def step_text(step: Step | None) -> str:
    """Return ``step 12 (64 tokens)``."""
    if step is None:
        return "no step"
    if step.dummy:
        return f"step {step.number} (dummy)"
    tokens = "" if step.tokens is None else f" ({plural(step.tokens, 'token')})"
    return f"step {step.number}{tokens}"


def idle_after(step: Step | None, unseen: Activity | None) -> str:
    """Return that a worker is idle, with a place for its duration.

    Args:
        step: Its last step.
        unseen: What its engine has sent it, if it has not received that.
    """
    text = f"idle in dequeue{{since}} after {step_text(step)}"
    if unseen is not None:
        text += f", though its engine has sent it {method_text(unseen)}"
    return text


def in_call(call: Call, label: str) -> str:
    """Return the clause that ranks are in a call."""
    return f", in call {call.seq} on {label}, {call.op}{site_text(call)}"


def belongs(comm: Communicator, seq: int, steps: Sequence[tuple[Rank, Step]]) -> str:
    """Say to which step of each rank a call belongs."""
    parts = (f"to {step_text(step)} on {ranks_text([rank.rank])}" for rank, step in steps)
    return f"call {seq} on {comm_text(comm)} belongs {', '.join(parts)}"


def engine_stopped(name: str, engine: Rank) -> str:
    """Say that an engine is stopped."""
    return f"engine {name} (pid {engine.pid}) is stopped by a signal (state T)"


def engine_in_call(name: str, engine: Rank, comm: Communicator, call: Call) -> str:
    """Say that an engine waits for the other engines."""
    return (
        f"engine {name} (pid {engine.pid}) waits in call {call.seq} on {comm.label}, "
        f"{call_text(call)}, for the other engines"
    )


def engine_waits(
    name: str, engine: Rank, since: str, workers: Sequence[int], sent: Activity | None
) -> str:
    """Say that an engine waits for its workers."""
    return (
        f"engine {name} (pid {engine.pid}) waits{since}: "
        f"{ranks_text(workers) if workers else 'its workers'} {have(workers)} not answered "
        f"{method_text(sent)}"
    )


def method_text(sent: Activity | None) -> str:
    """Return the name of the requested method; ``a call`` where it has no name."""
    named = sent is not None and sent.detail is not None and sent.detail.isidentifier()
    return str(sent.detail) if sent is not None and named else "a call"


def hole(comm: Communicator, seq: int, *, has_more: bool) -> str:
    """Say that a call near a number is not recorded, or that one rank alone recorded it."""
    where = f"near #{seq} on {comm.label or comm.key[:12]}"
    if has_more:
        return (
            f"it alone recorded a call {where}, and all went on: the call was refused, or those of "
            f"its peers are not recorded"
        )
    return f"a call {where} is not recorded, though its peers posted it and all went on"


def hole_of_op(comm: Communicator, op: str) -> str:
    """Say that no call of an operation is recorded."""
    return (
        f"{op} on {comm.label or comm.key[:12]} is not recorded, though its peers posted it and "
        f"all went on"
    )


def mixed(comm: Communicator) -> str:
    """Say that probes and NCCL's plugin numbered the calls of a communicator differently."""
    return (
        f"the calls on {comm_text(comm)} are not compared: probes recorded those of some ranks and "
        f"NCCL's plugin those of others, and these are numbered differently"
    )
