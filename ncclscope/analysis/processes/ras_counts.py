"""Compare the numbers of calls that each rank launched, as NCCL's RAS counted them.

Counts show how many calls of a function a rank lacks, but not which ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ncclscope.model.snapshot import RasComm, RasRank, Snapshot

__all__ = ["ShortCount", "changes", "global_rank", "ras_counts", "short_ranks"]


@dataclass(frozen=True)
class ShortCount:
    """Ranks that have launched fewer calls of a function than others.

    Attributes:
        comm: NCCL's hash of the communicator.
        ranks: Global ranks that launched fewer calls.
        function: NCCL's name of the function, such as ``AllReduce``.
        fewest: Lowest number of launched calls.
        usual: Number of calls that the majority launched; without a majority the highest number.
        by_majority: Whether more than half of the members launched ``usual`` calls.
    """

    comm: str
    ranks: tuple[int, ...]
    function: str
    fewest: int
    usual: int
    by_majority: bool


def ras_counts(snapshot: Snapshot) -> dict[str, dict[int, dict[str, int]]]:
    """Return the numbers of launched calls, by communicator hash, global rank and function.

    Omit ranks that did not answer. Omit communicators whose counts changed while the job was
    sampled: RAS polled their ranks one after the other. A text answer holds only the ranks and
    functions that differ.
    """
    found: dict[str, dict[int, dict[str, int]]] = {}
    for comm in snapshot.ras.comms if snapshot.ras is not None else ():
        if changes(snapshot, comm):
            continue
        counts = {
            rank: dict(member.counts)
            for member in comm.ranks
            if member.counts and (rank := global_rank(snapshot, comm, member)) is not None
        }
        if counts:
            found[comm.hash] = counts
    return found


def short_ranks(snapshot: Snapshot) -> list[ShortCount]:
    """Return the ranks that launched fewer calls than others, by communicator and function."""
    found = []
    usual_of = {comm.hash: comm.usual for comm in snapshot.ras.comms} if snapshot.ras else {}
    for hash, members in ras_counts(snapshot).items():
        for function in sorted({name for counts in members.values() for name in counts}):
            # A text answer does not list members and functions with the majority's count.
            default = usual_of[hash].get(function, 0)
            launched = {rank: counts.get(function, default) for rank, counts in members.items()}
            usual, is_majority = _usual(launched, usual_of[hash].get(function))
            short = tuple(sorted(rank for rank, count in launched.items() if count < usual))
            if short:
                fewest = min(launched.values())
                found.append(ShortCount(hash, short, function, fewest, usual, is_majority))
    return found


def global_rank(snapshot: Snapshot, comm: RasComm, member: RasRank) -> int | None:
    """Return the global rank of a member; None where it is not known.

    Look it up by pid; otherwise use its number, if the communicator holds all ranks.

    Args:
        snapshot: The process snapshot.
        comm: The communicator in RAS.
        member: The member.
    """
    by_pid = {worker.pid: worker.rank for worker in snapshot.workers}
    size = max((worker.world_size for worker in snapshot.workers), default=0)
    is_whole = comm.size in (size, len(snapshot.workers)) and comm.size > 0
    return by_pid.get(member.pid, member.rank if is_whole else None)


def changes(snapshot: Snapshot, comm: RasComm) -> bool:
    """Return whether calls of a communicator were launched while the job was sampled."""
    earlier = snapshot.ras_before.comms if snapshot.ras_before is not None else ()
    return any(_counts(one) != _counts(comm) for one in earlier if one.hash == comm.hash)


def _usual(launched: dict[int, int], listed: int | None) -> tuple[int, bool]:
    if listed is not None:
        return listed, True
    usual, count = Counter(launched.values()).most_common(1)[0]
    if 2 * count > len(launched):
        return usual, True
    return max(launched.values()), False


def _counts(comm: RasComm) -> dict[int, dict[str, int]]:
    return {rank.rank: dict(rank.counts) for rank in comm.ranks}
