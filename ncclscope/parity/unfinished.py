"""Where ranks were that did not return in time, and what that makes of the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ncclscope.engine.processes.motion import Motion, read_motions
from ncclscope.engine.verdict import Verdict
from ncclscope.errors import NcclscopeError
from ncclscope.wording.names import ranks_text, sentence

_GAP_SECONDS = 1.0


def sample(rings: Path, pids: Sequence[int]) -> None:
    """Write the stacks of ranks beside their rings, if the kernel and py-spy allow to read them.

    Args:
        rings: Directory of the rings.
        pids: Processes of the ranks, which still run.
    """
    from ncclscope.attach.bundle import write_snapshot
    from ncclscope.attach.session import Options, sample_job

    try:
        snapshot = sample_job(Options(tuple(pids), gap=_GAP_SECONDS)).snapshot
        if any(stacks.threads for worker in snapshot.workers for stacks in worker.stacks):
            write_snapshot(rings, snapshot)
    except (NcclscopeError, OSError):
        return  # the records alone remain


def unless_ok(verdict: Verdict, waiting: Sequence[int]) -> Verdict:
    """Return a verdict that does not call ranks fine which did not return in time.

    Args:
        verdict: Verdict from their records and stacks.
        waiting: The ranks that did not return.
    """
    if verdict.in_trouble:
        return verdict
    snapshot = verdict.run.snapshot
    motions = {} if snapshot is None else read_motions(snapshot)
    ranks: dict[str, list[int]] = {}
    for rank in waiting:
        motion = motions.get(rank)
        if motion is not None and motion.frames and motion.text not in verdict.summary:
            ranks.setdefault(_place(motion), []).append(rank)
    places = "; ".join(
        f"{ranks_text(some)} {'is' if len(some) == 1 else 'are'} {at}" for at, some in ranks.items()
    )
    text = f"{sentence(ranks_text(waiting))} did not return{f': {places}' if places else ''}."
    return replace(verdict, status="unknown", summary=f"{text} {verdict.summary}")


def _place(motion: Motion) -> str:
    if motion.op is not None:
        return f"in {motion.text}"
    return f"at work at {motion.text}" if motion.condition == "moving" else f"at {motion.text}"
