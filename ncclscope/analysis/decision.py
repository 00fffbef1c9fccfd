"""One decision from all evidence.

Analyzers read the records, and one reads stacks, GPUs and NCCL's counts. Here their findings
meet: what is known of where each rank is now, and of what is not recorded, decides which of
them is the cause, whom it singles out, and how sure that is. No data source overrides another
by coming first: a recorded difference is a fact, a rank that waits in vain is explained by
whoever is known to be elsewhere, and what was not recorded makes nothing certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ncclscope.analysis.case import Case
from ncclscope.analysis.coverage import Coverage, uses_unrecorded
from ncclscope.analysis.processes.device_verdict import hear_ras
from ncclscope.analysis.processes.positions import Position, Positions
from ncclscope.analysis.reservations import (
    WAITS,
    unless_damaged,
    unless_ended_well,
    unless_in_flight,
    unless_moving,
    unless_slow,
)
from ncclscope.analysis.waits.endings import interrupted_after
from ncclscope.analysis.waits.unrecorded import (
    ANALYZER,
    left_inside,
    lost_connections,
    waiting_unrecorded,
)
from ncclscope.analysis.wording import (
    call_text,
    comm_text,
    rank_text,
    ranks_text,
    sentence,
    verb,
)
from ncclscope.model import Finding

__all__ = ["ANALYZER", "FROM_STACKS", "decide"]

FROM_STACKS = "stack_classes"
"""The analyzer that reads what was seen of living processes."""

_SHOWN = 4
"""Diverging ranks of which it is said where they are."""
_WHEREABOUTS = ("the last call of rank ", "rank ")


def decide(case: Case, findings: Sequence[Finding], coverage: Coverage) -> list[Finding]:
    """Return the findings as they are in the light of all data sources.

    Args:
        case: What was recorded, and what was seen of living processes.
        findings: Of the analyzers, each by itself.
        coverage: What of the job is recorded.
    """
    recorded = [one for one in findings if one.analyzer != FROM_STACKS]
    seen = [one for one in findings if one.analyzer == FROM_STACKS]
    positions = Positions(case)
    recorded = [unless_ended_well(case, unless_damaged(case, one)) for one in recorded]
    found = [unless_slow(case, _revised(case, one, positions)) for one in recorded]
    if len([one for one in found if one.role != "latent"]) == 1:
        found = [unless_in_flight(case, one) for one in found]
    if any(one.role == "cause" for one in found):
        # What was seen is kept with the data sources, and is no finding of its own.
        elsewhere = [*seen, *_from_counts(case)]
        found = [_singled_out(one, elsewhere) for one in found]
        seen = []
    else:
        seen = [unless_moving(case, one) for one in seen]
        if not any(one.role == "cause" for one in seen):
            seen += [*waiting_unrecorded(case, positions), *left_inside(case, positions)]
        if not any(one.role == "cause" for one in seen):
            seen += lost_connections(case)
        if not any(one.role == "cause" for one in seen):
            seen += _from_counts(case)
    found += seen
    if not coverage.complete:
        found = [_capped(one) for one in found]
    return [_placed(case, one, positions) for one in found]


def _revised(case: Case, finding: Finding, positions: Mapping[int, Position]) -> Finding:
    """Return a finding about ranks that wait, with what is known of those who have not come.

    Few who wait in a call that many have not posted have left the common sequence; where many
    wait, the few are missing. Never are the many blamed.
    """
    comm, seq = finding.comm, finding.seq
    if finding.role != "cause" or finding.kind not in WAITS or comm is None or finding.aligned:
        return finding
    waiting = tuple(
        number
        for number, pending in sorted(case.waits.pending_calls.items())
        if (pending.comm.key, pending.call.seq) == (comm.key, seq)
    )
    absent = tuple(rank for rank in comm.ranks if rank not in waiting)
    hidden = tuple(rank for rank in absent if _may_hide(case, rank, positions.get(rank), comm.key))
    if not waiting or not hidden:
        return finding
    gone = [rank for rank in absent if rank not in hidden]
    if gone and set(finding.diverging_ranks) <= set(gone):
        return finding  # these are known to be elsewhere, and all others wait for them
    if finding.kind == "dead_rank" and len(waiting) > len(absent):
        return finding
    call = case.waits.pending_calls[waiting[0]].call
    where = f"call {seq} on {comm_text(comm)}, {call_text(call)}"
    doing = _hidden_text(hidden, positions)
    short = _short_by_counts(case)
    evidence = (
        f"{ranks_text(waiting)} posted {where}, and {verb(waiting, 'wait')} in it; "
        f"{ranks_text(absent)} did not",
        *(line for line in finding.evidence[1:] if line.startswith(_WHEREABOUTS)),
    )
    known = any(positions[rank].is_unrecorded for rank in hidden if rank in positions)
    wait = verb(hidden, "wait") if known else "may wait"
    common = replace(
        finding,
        peers=call,
        evidence=evidence,
        inferred=(f"{ranks_text(hidden)} {wait} in calls that are not recorded",),
        confidence="likely",
    )
    if short and set(short) <= set(comm.ranks):
        return replace(
            common,
            kind="missing_call",
            diverging_ranks=short,
            candidate_ranks=(),
            summary=(
                f"{sentence(ranks_text(short))} launched fewer calls than "
                f"{'its' if len(short) == 1 else 'their'} peers, as NCCL counts them: "
                f"{ranks_text(waiting)} {verb(waiting, 'wait')} in {where}; {doing}."
            ),
            odd=None,
            evidence=(*evidence, *_ras_lines(case)),
        )
    if len(waiting) < len(absent):
        alone = "alone " if len(waiting) == 1 else ""
        return replace(
            common,
            kind="extra_call",
            diverging_ranks=waiting,
            candidate_ranks=(),
            odd=call,
            peers=None,
            summary=(
                f"{sentence(_who(case, waiting))} {verb(waiting, 'wait')} {alone}in {where}, which "
                f"{ranks_text(absent)} have not posted: {doing}. "
                f"{'It' if len(waiting) == 1 else 'They'} left the common sequence before "
                f"{'its' if len(waiting) == 1 else 'their'} peers, or posted one call too many."
            ),
        )
    if len(waiting) > len(absent):
        return replace(
            common,
            kind="not_joined",
            diverging_ranks=absent,
            candidate_ranks=(),
            summary=(
                f"{sentence(_who(case, absent))} {'has' if len(absent) == 1 else 'have'} not "
                f"joined {where}, in which {ranks_text(waiting)} {verb(waiting, 'wait')}: {doing}."
            ),
        )
    return replace(
        common,
        kind="not_joined",
        diverging_ranks=(),
        candidate_ranks=tuple(sorted(comm.ranks)),
        confidence="ambiguous",
        summary=(
            f"{sentence(ranks_text(waiting))} {verb(waiting, 'wait')} in {where}, which "
            f"{ranks_text(absent)} {'has' if len(absent) == 1 else 'have'} not posted: {doing}. "
            f"Which side left the common sequence is not recorded."
        ),
    )


def _singled_out(finding: Finding, seen: Sequence[Finding]) -> Finding:
    """Return a finding that names nobody, with the ranks that stacks or counts single out.

    One that waits against one that has not come is a tie of the records. A stack may show that
    the other is held up outside of any collective.
    """
    undecided = finding.kind in WAITS or finding.kind == "stalled"
    if finding.role != "cause" or finding.diverging_ranks or not undecided:
        return finding
    for one in seen:
        ranks = set(one.diverging_ranks)
        if one.role == "cause" and ranks and ranks < set(finding.candidate_ranks):
            return replace(
                finding,
                kind=one.kind,
                summary=_named_summary(finding, one),
                diverging_ranks=one.diverging_ranks,
                candidate_ranks=(),
                confidence="likely",
                evidence=(*finding.evidence, *one.evidence),
                inferred=(
                    *one.inferred,
                    "whom it singles out, from what was seen of the processes",
                ),
            )
    return finding


def _named_summary(finding: Finding, one: Finding) -> str:
    """Return what singles ranks out, and where they wait."""
    named = sentence(one.summary)
    if finding.kind != "stalled":
        return f"{finding.summary} {named}"
    if finding.comm is None or finding.peers is None:
        return named
    # That no rank diverged, as its summary says, is what the counts contradict.
    ranks, where = finding.comm.ranks, f"call {finding.seq} on {comm_text(finding.comm)}"
    return (
        f"{named.rstrip('.')}; {ranks_text(ranks)} {verb(ranks, 'wait')} in {where}, "
        f"{call_text(finding.peers)}."
    )


def _may_hide(case: Case, number: int, position: Position | None, key: str) -> bool:
    """Whether a rank waits, or may wait, in a call that is not recorded."""
    rank = case.run.by_rank.get(number)
    if position is None or rank is None or position.state in ("stopped", "idle"):
        return False
    if position.is_unrecorded:
        return True
    if position.state == "ended" and rank.exited and not rank.details.get("ended_with"):
        return False
    # A process that crashed may have done so inside of a call that is not recorded, too.
    return position.state in ("unknown", "ended") and uses_unrecorded(rank, key)


def _hidden_text(hidden: Sequence[int], positions: Mapping[int, Position]) -> str:
    """Return where ranks are that wait past all probes, as far as anything says it."""
    places: dict[str, list[int]] = {}
    for rank in hidden:
        position = positions.get(rank)
        text = position.text if position is not None and position.is_unrecorded else ""
        places.setdefault(text, []).append(rank)
    parts = []
    for text, ranks in places.items():
        who = ranks_text(ranks)
        if text:
            parts.append(f"{who} {verb(ranks, 'wait')} in {text}, which is not recorded")
        else:
            parts.append(f"{who} {verb(ranks, 'use')} collectives that are not recorded")
    return "; ".join(parts)


def _who(case: Case, ranks: Sequence[int]) -> str:
    return rank_text(case.run, ranks[0]) if len(ranks) == 1 else ranks_text(ranks)


def _from_counts(case: Case) -> Iterable[Finding]:
    """Yield ranks that launched fewer calls than their peers, as NCCL's RAS counts them.

    Counts prove how many calls of which function are missing, and not which.
    """
    snapshot = case.run.snapshot
    heard = None if snapshot is None else hear_ras(snapshot)
    if heard is None or not heard.odd:
        return
    ranks = heard.ranks
    quiet = [case.quiet_seconds(rank) for rank in case.run.ranks if rank.logs]
    known = [seconds for seconds in quiet if seconds is not None]
    if not known or min(known) < case.live_stall_seconds:
        return  # calls are being posted, and some ranks are asked earlier than others
    everybody = tuple(rank.rank for rank in case.run.ranks)
    yield Finding(
        kind=heard.kind,
        summary=f"{sentence(heard.says)}, as NCCL counts them; in what was recorded no rank "
        f"differs.",
        diverging_ranks=ranks,
        candidate_ranks=() if ranks else everybody,
        confidence="likely" if ranks else "ambiguous",
        analyzer=ANALYZER,
        evidence=(f"ras: {heard.says}",),
        inferred=("which call it is: counts do not tell",),
    )


def _short_by_counts(case: Case) -> tuple[int, ...]:
    """Return the ranks that launched fewer calls than their peers; none where counts agree."""
    snapshot = case.run.snapshot
    heard = None if snapshot is None else hear_ras(snapshot)
    return heard.ranks if heard is not None and heard.kind == "missing_call" else ()


def _ras_lines(case: Case) -> tuple[str, ...]:
    snapshot = case.run.snapshot
    heard = None if snapshot is None else hear_ras(snapshot)
    return () if heard is None else (f"ras: {heard.says}",)


def _capped(finding: Finding) -> Finding:
    """Return a finding that claims no certainty, since not all that the job does is recorded."""
    if finding.confidence != "certain":
        return finding
    return replace(finding, confidence="likely")


def _placed(case: Case, finding: Finding, positions: Mapping[int, Position]) -> Finding:
    """Return a finding that says where its diverging ranks are now, where a stack says it."""
    if finding.analyzer == FROM_STACKS:
        return finding
    asked = finding.diverging_ranks[:_SHOWN] if case.run.snapshot is not None else ()
    frames = {
        rank: position.frame
        for rank in asked
        if (position := positions.get(rank)) is not None and position.frame is not None
    }
    lines = tuple(f"stacks: rank {rank} is at {frame.site} now" for rank, frame in frames.items())
    absent = finding.kind in ("not_joined", "dead_rank") and finding.odd is not None
    return replace(
        finding,
        odd_is="last_call" if absent else finding.odd_is,
        at=next(iter(frames.values()), None),
        evidence=(*finding.evidence, *lines, *_endings(case, finding)),
    )


def _endings(case: Case, finding: Finding) -> Iterable[str]:
    """Yield how diverging ranks ended with the whole job, which is not why it hung."""
    for number in finding.diverging_ranks[:_SHOWN]:
        rank = case.run.by_rank.get(number)
        seconds = None if rank is None else interrupted_after(case, rank)
        if rank is not None and seconds is not None:
            how = str(rank.details["ended_with"]).rstrip(": ")
            yield (
                f"rank {number} ended with {how} {seconds:.0f} s after its last call: that is how "
                f"the job was stopped, and not what its peers wait for"
            )
