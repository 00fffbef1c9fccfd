"""Steps of engines and their workers, and what engines wait for."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Activity, Call, Communicator, Rank, Step
from ncclscope.wording.names import call_text, comm_text, have, plural, ranks_text, site_text


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
