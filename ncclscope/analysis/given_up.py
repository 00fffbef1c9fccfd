"""Calls that the ranks in them gave up, and went on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.analysis.case import Case
from ncclscope.analysis.wording import call_text, comm_text, ranks_text
from ncclscope.model import Finding, Rank
from ncclscope.model.activities import RAISED
from ncclscope.model.signature import BARRIERS


def _went_on(rank: Rank) -> bool:
    """Return whether a process exited in order."""
    return rank.exited and not rank.details.get("ended_with")


def have_gone_on(case: Case, rank: Rank, finding: Finding, waiting: Sequence[int]) -> bool:
    """Return whether all exited in order, and those that were in the call caught its failure."""
    peers = [case.run.by_rank[own] for own in waiting]
    blocks = finding.peers is not None and finding.peers.op in BARRIERS
    caught = blocks or all(RAISED in peer.activities for peer in peers)
    return caught and all(map(_went_on, (rank, *peers)))


def given_up(finding: Finding, waiting: Sequence[int]) -> Finding:
    """Describe a call that nobody waits in: its ranks gave it up, went on, and exited in order."""
    comm, call = finding.comm, finding.peers
    (number,) = finding.diverging_ranks
    where = "" if comm is None else f" on {comm_text(comm)}"
    return replace(
        finding,
        summary=(
            f"Rank {number} never joined call {finding.seq}{where}, {call_text(call)}; "
            f"{ranks_text(waiting)} gave it up. All of them went on, and exited normally."
        ),
        role="latent",
    )
