"""Decide whether a verdict is good enough to kill a job for."""

from __future__ import annotations

from ncclscope.analysis.verdict import Verdict
from ncclscope.analysis.wording import ranks_text


def why_not_kill(verdict: Verdict) -> str:
    """Return why the processes must not be killed for a verdict; empty if they may be.

    A job that is killed for a wrong verdict is lost. So the verdict names ranks whose records were
    read, and it is certain, or likely where all calls of the job are known to be recorded.
    """
    cause = verdict.cause
    if cause is None:
        return "the verdict names no cause"
    named = {*cause.diverging_ranks, *cause.candidate_ranks}
    if not named:
        return "the verdict names no rank"
    # The cause may be that of a linked job, whose ranks have their own numbers.
    read = [run.by_rank.keys() for run in (verdict.run, *verdict.run.linked)]
    if not any(named <= ranks for ranks in read):
        unread = named - read[0]
        return f"{ranks_text(unread)}, which the verdict names, left no record that was read"
    if cause.confidence == "certain":
        return ""
    if cause.confidence != "likely":
        return f"the verdict is {cause.confidence}"
    if not verdict.coverage.complete:
        first = verdict.coverage.unseen[0]
        return f"the verdict is likely, and not all is recorded ({first})"
    return ""
