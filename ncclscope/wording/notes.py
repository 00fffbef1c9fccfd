"""What processes noted that they do besides their calls."""

from __future__ import annotations

from ncclscope.model import Activity, Step
from ncclscope.model.activities import COMM_INIT, INIT, STORE_WAIT
from ncclscope.untrusted import printable
from ncclscope.wording.names import plural
from ncclscope.wording.phrase import Phrase

SHOWN = 160
"""Characters of a note that are shown."""
CONNECTING = {"connect": "to connect to", "serve": "for its peers, as the server of"}
"""What a process does at a store without a key, by its method."""


class Note(Phrase):
    """What a process noted, and what an engine waits for."""

    RAISED = "rank {} raised {}, {:.0f} s before its last heartbeat{}"
    POSTED_NOTHING = ", and posted nothing since"
    ENDED_PROCESS = "; it ended the process"
    ENDED_THREAD = "; it ended a thread"
    LAST_KEY = "the last key that rank {} set is '{}'"
    TIMEOUT_COMES = "torch's timeout for calls on {} is {} s: it comes in {:.0f} s"
    TIMEOUT_ENDED = "rank {}: its timeout of {} s ended the wait"
    TIMEOUT_ENDS = "rank {}: its timeout of {} s ends the wait {}"
    IN_CALL = ", in call {} on {}, {}"
    BELONGS = "call {} on {} belongs {}"
    ENGINE_STOPPED = "engine {0} (pid {1.pid}) is stopped by a signal (state T)"
    ENGINE_IN_CALL = (
        "engine {0} (pid {1.pid}) waits in call {2.seq} on {3.label}, {2}, for the other engines"
    )
    ENGINE_WAITS = "engine {0} (pid {1.pid}) waits{2}: {3} {workers:have} not answered {call}"
    ENGINE_IS_AT = "engine {0} (pid {1.pid}) has sent no work for {seconds:.0f} s, in {2}{at}"
    OWN_STEP = "its own step"
    ENGINE_PAUSED = "engine {0} (pid {1.pid}) has been paused for {seconds:.0f} s"
    ENGINE_SILENT = (
        "engine {0} (pid {1.pid}) recorded nothing in the last {seconds:.0f} s of the job, as if "
        "stopped or killed"
    )
    ENGINE_ENDED = "engine {0} (pid {1.pid}) {2}"
    IS_AT = ", its stack at {}"
    WORKERS = "its workers"


class Came(Phrase):
    """How far a worker has come with a call of its engine; it follows its name."""

    NOT_TAKEN = "waits for work since before it was sent"
    INSIDE = "has taken it, and has not come back"
    EARLIER = "has not come back from an earlier call"
    BACK = "has taken it, has not answered, and waits for work again"
    ANSWERED = "has answered"
    ITSELF = "runs in the engine's process, and has not come back"


class Rpc(Phrase):
    """That workers do not answer a call of their engine."""

    INSIDE = (
        "{who:^} {ranks:have} not answered {call}, for which {engine} has waited {seconds:.0f} s: "
        "{ranks:they} took the call, and {ranks:are} {at}."
    )
    ITSELF = (
        "{who:^} {ranks:have} not come back from {call} in {seconds:.0f} s, and {ranks:are} {at}: "
        "{engine} runs in the same process, and answers nobody."
    )
    HELD = (
        "{engine:^} has not come back from {call} in {seconds:.0f} s, while {workers} "
        "{workers:wait} for work: {at}"
    )
    HELD_AT = "it is at {}."
    HELD_ANYWHERE = "no record shows where it is."
    EARLIER = (
        "{who:^} {ranks:have} not taken {call}, for whose answer {engine} has waited {seconds:.0f} "
        "s: {ranks:they} {ranks:are} still at an earlier call, {at}."
    )
    GIVEN_UP = (
        "{who:^} {ranks:have} not come back from {call} of {engine}, which no longer waits for "
        "that, and has waited for requests for {seconds:.0f} s: {ranks:they} {ranks:are} {at}."
    )
    NOT_TAKEN = (
        "{who:^} {ranks:have} not taken {call}, for whose answer {engine} has waited {seconds:.0f} "
        "s: {ranks:they} {ranks:are} {at}."
    )
    BACK = (
        "{who:^} took {call}, gave {engine} no answer in {seconds:.0f} s, and {ranks:wait} for "
        "work again."
    )
    LOST = (
        "{ranks:^} answered {call}, and {engine} has waited {seconds:.0f} s for the answer: it was "
        "lost between them."
    )
    LATE = (
        "{who:^} {ranks:are} late with the answer to {call}, for which {engine} has waited "
        "{seconds:.0f} s: {ranks:they} {ranks:are} {at}, or in an endless loop."
    )
    UNANSWERED = "{processes}, with {requests} without any part of an answer for {seconds:.0f} s."
    LOST_REQUESTS = (
        "{requests} without any part of an answer at {servers} for {seconds:.0f} s, while "
        "{engines} {ranks:wait} for requests: these, or their answers, were lost on the way."
    )
    NO_WORK = (
        "{processes}, so that nothing wakes the engine of {ranks}: {ranks:they} {ranks:wait} for "
        "work, while {waiting} {waiting:wait} for {ranks:them}."
    )
    WAITS_IN = "{0} {0:wait} in call {1.seq} on {2}, {1:@}"
    APART = (
        "{who:^} {ranks:have} not come to call {call.seq} on {comm}, {call}, in which {waiting} "
        "{waits:wait} for {seconds:.0f} s{did}."
    )
    GONE = (
        "{who:^} {ranks:are} gone without a recorded end, as if killed: nobody sends {ranks:their} "
        "workers work, or answers {ranks:their} requests."
    )
    RAISED = "process {} then raised {}"
    RAISED_BY = "{} raised {}"
    FALLEN = "{}; then {}: the service has ended."
    RESTS = "; {0:they} {0:wait} for requests"
    MADE = "{} has posted {} calls on {}"
    ENGINE = "engine {} (pid {})"
    THE_ENGINE = "the engine (pid {})"
    CONT = "kill -CONT {} resumes it"
    IS_STOPPED = "stopped by a signal (state T)"
    UNSEEN = "at a place that is not recorded"
    SENT = "{} sent {}, and has waited for the answer for {:.0f} s"
    BEGAN = "{} has been in {} for {:.0f} s"
    SENT_LAST = "{} sent {} last, and has waited for requests for {:.0f} s"
    WORKER = "rank {} {}"


class Unheard(Phrase):
    """Why a process answers nobody, to follow its name."""

    STOPPED = "{0:are} stopped by a signal (state T)"
    SILENT = "{0:have} recorded nothing in the last {1:.0f} s of the job, as if stopped or killed"
    BLOCKED = "{0:have} not run {0:their} event loop for {1:.0f} s{2}"
    IS_AT = ": it is at {}"


class Requests(Phrase):
    """Requests that wait in an engine, or in a server."""

    NOT_SCHEDULED = (
        "Engine {} (pid {}) has scheduled no token for {:.0f} s, though it has {}{}: no rank "
        "diverged."
    )
    STEPS = (
        "The engine (pid {}) has run nothing for {:.0f} s, though it has requests: it takes one "
        "step without tokens after the other. No rank diverged."
    )
    SLEPT = (
        "{} of {} samples show the engine in its sleep after a step without tokens, none in its "
        "wait for requests, and none a worker in its model"
    )
    COUNTED = " ({})"
    COUNTS = "its scheduler counts: {}"
    NO_RANK = "the workers wait for what the engine schedules"
    OPEN = "{} without any part of an answer for {:.0f} s, and no record shows why."
    PAUSED = "Engine {} (pid {}) is paused, for {:.0f} s, with {}."


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


def method_text(sent: Activity | None) -> str:
    """Return the name of the requested method; ``a call`` where it has no name."""
    named = sent is not None and sent.detail is not None and sent.detail.isidentifier()
    return str(sent.detail) if sent is not None and named else "a call"


class Lacks(Phrase):
    """Calls that a record lacks, or that cannot be compared."""

    ALONE = (
        "it alone recorded a call near #{} on {}, and all went on: the call was refused, or those "
        "of its peers are not recorded"
    )
    CALL = "a call near #{} on {} is not recorded, though its peers posted it and all went on"
    OP = "{} on {} is not recorded, though its peers posted it and all went on"
    MIXED = (
        "the calls on {} are not compared: probes recorded those of some ranks and NCCL's plugin "
        "those of others, and these are numbered differently"
    )
