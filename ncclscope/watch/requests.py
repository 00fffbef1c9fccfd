"""Tell a server that waits for requests in a queue from a rank that does not join a broadcast."""

from __future__ import annotations

from dataclasses import replace

from ncclscope.analysis.processes.judgement import SENDERS
from ncclscope.analysis.processes.motion import waits_for_requests
from ncclscope.analysis.verdict import Verdict
from ncclscope.attach.stacks import PySpy, find_py_spy
from ncclscope.model import Rank, Run
from ncclscope.model.snapshot import Stacks

__all__ = ["with_waiting_root"]


def with_waiting_root(run: Run, verdict: Verdict) -> Run | None:
    """Return the run with the root of a pending broadcast marked as waiting for input.

    Its main thread waits in a queue that another thread fills, as that of an HTTP server does. The
    kernel shows a lock then, so only its stack tells. It is read once, and only before an alarm.

    Args:
        run: The records of a running job.
        verdict: The verdict on them.

    Returns:
        None where the verdict is not about the root of a broadcast, or its stack shows no queue.
    """
    cause = verdict.cause
    call = None if cause is None else cause.peers
    if cause is None or call is None or call.op not in SENDERS or call.global_root is None:
        return None
    rank = run.by_rank.get(call.global_root)
    named = (*cause.diverging_ranks, *cause.candidate_ranks)
    if rank is None or not rank.alive or rank.rank not in named:
        return None
    if rank.details.get("waits_for_input") or not waits_for_requests(_stacks(rank)):
        return None
    marked = replace(rank, details={**rank.details, "waits_for_input": True})
    return replace(run, ranks=tuple(marked if one is rank else one for one in run.ranks))


def _stacks(rank: Rank) -> Stacks:
    program = find_py_spy()
    return Stacks() if program is None or not rank.pid else PySpy(program).read_one(rank.pid)
