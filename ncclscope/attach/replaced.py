"""Ranks whose process still lives, but runs another program now."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.attach.candidate import Candidate
from ncclscope.attach.processes import describe
from ncclscope.model import Run


def replaced_programs(run: Run, workers: Sequence[Candidate]) -> list[Candidate]:
    """Return the processes of a run that have replaced their program, such as by ``os.execv``.

    Pid and start time stay the same, so the ring's process is alive, but it has lost the mapping
    of its ring and is not found as a worker.

    Args:
        run: The run of the workers' rings.
        workers: The workers that were found; a rank that one of them claims is theirs.
    """
    known = {one.pid for one in workers}
    claimed = {one.integer("RANK", "SLURM_PROCID") for one in workers}
    lost = [
        describe(rank.pid)
        for rank in run.ranks
        if rank.alive and not rank.exited and rank.pid not in known and rank.rank not in claimed
    ]
    return [one for one in lost if not one.rings]
