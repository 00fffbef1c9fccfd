"""Decide whether a verdict is good enough to kill a job for."""

from __future__ import annotations

from ncclscope.engine.verdict import Verdict
from ncclscope.wording.names import ranks_text


def why_not_kill(verdict: Verdict) -> str:
    """Return why the processes must not be killed after a while; empty if they may be.

    The verdict names ranks whose records were read, and it is certain, or likely where all calls
    of the job are known to be recorded: a job that is killed for a wrong verdict is lost.
    """
    if why := unread_text(verdict):
        return why
    confidence = verdict.cause.confidence if verdict.cause is not None else "none"
    if confidence not in ("certain", "likely"):
        return f"the verdict is {confidence}"
    if confidence == "certain" or verdict.coverage.complete:
        return ""
    return f"the verdict is likely, and not all is recorded ({verdict.coverage.unseen[0]})"


def unread_text(verdict: Verdict) -> str:
    """Say which ranks a verdict is about without any record of them; empty if there are none."""
    cause = verdict.cause
    named = set() if cause is None else {*cause.diverging_ranks, *cause.candidate_ranks}
    if not named:
        return "the verdict names no rank"
    # The cause may be that of a linked job, whose ranks have their own numbers.
    read = [run.by_rank.keys() for run in (verdict.run, *verdict.run.linked)]
    if any(named <= ranks for ranks in read):
        return ""
    return f"the verdict names {ranks_text(named - read[0])}, of which no record was read"
