"""Join the findings on ranks that were lost together, as with their node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.model import Blame, Finding
from ncclscope.wording.ends import End, Ends
from ncclscope.wording.names import numbered
from ncclscope.wording.waits import Wait

_DOUBTS = ("ambiguous", "likely", "certain")


def as_one(case: Case, found: Sequence[Finding]) -> list[Finding]:
    """Return findings, where those on ranks that peers miss in one call are one, as of a node."""
    groups: dict[tuple[str, int], list[Finding]] = {}
    for one in found:
        if one.comm is None or one.role != "cause" or len(one.diverging_ranks) != 1:
            continue
        rank = case.run.by_rank.get(one.diverging_ranks[0])
        if rank is not None and case.how_it_ended(rank) is not None:
            groups.setdefault((one.comm.key, one.seq or 0), []).append(one)
    merged = {id(group[0]): _joined(case, group) for group in groups.values() if len(group) > 1}
    dropped = {id(one) for group in groups.values() for one in group[1:]}
    return [merged.get(id(one), one) for one in found if id(one) not in dropped]


def _joined(case: Case, group: Sequence[Finding]) -> Finding:
    """Return one finding on several ranks that are gone, and that the same ranks wait for."""
    ranks = tuple(sorted(one.diverging_ranks[0] for one in group))
    ends = {n: end for n in ranks if (end := case.how_it_ended(case.run.by_rank[n])) is not None}
    how = "; ".join(f"rank {number}: {end}" for number, end in ends.items())
    if all(end.code is End.NOT_NOTED for end in ends.values()):
        how = str(Ends.NONE_NOTED)
    first = group[0]
    waiting = [n for n in case.waits.pending_calls if n not in ranks and _is_in(case, n, first)]
    return replace(
        first,
        summary=Ends.TOGETHER.of(ranks=ranks, how=how, wait=wait_text(first, waiting, "them")),
        blame=Blame.on(ranks, min((one.confidence for one in group), key=_DOUBTS.index)),
        evidence=tuple(dict.fromkeys(line for one in group for line in one.evidence)),
        inferred=tuple(dict.fromkeys(line for one in group for line in one.inferred)),
    )


def wait_text(finding: Finding, waiting: Sequence[int], whom: str) -> str:
    """Return that ranks wait for others in the call of a finding."""
    where = numbered(finding.comm, finding.seq, finding.peers)
    return Wait.FOR.of(waiting=waiting, whom=whom, where=where)


def _is_in(case: Case, number: int, finding: Finding) -> bool:
    call = case.waits.pending_calls[number].call
    return finding.comm is not None and (call.comm, call.seq) == (finding.comm.key, finding.seq)
