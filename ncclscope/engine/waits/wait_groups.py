"""The wait-for graph with ranks in the same call merged into one node, for drawing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ncclscope.engine.waits.waits import PendingCall, Waits
from ncclscope.model import Call, Communicator, Finding, Run
from ncclscope.wording.waits import Place

MOST_PLACES = 20
"""Nodes beyond which groups are merged further, by the kind of their communicator."""


@dataclass(frozen=True)
class WaitGroup:
    """Ranks in the same pending call that wait for the same ranks.

    Attributes:
        ranks: Global ranks.
        call: Their pending call; None where no call is known to be pending.
        comm: Its communicator.
        note: Further information: ``left no record``, ``exited normally``.
        odd: Whether the verdict names one of them.
        alike: Whether the ranks are in the same operation on different communicators of one kind.
        depth: Links from this group to one that waits for no rank; None on a cycle or behind one.
    """

    ranks: tuple[int, ...]
    call: Call | None
    comm: Communicator | None
    note: str = ""
    odd: bool = False
    alike: bool = False
    depth: int | None = None


@dataclass(frozen=True)
class Link:
    """A group of ranks that waits for another group.

    Attributes:
        source: Index of the waiting group.
        target: Index of the awaited group.
        kind: ``absent`` (has not posted the call), ``queued`` (has posted it, but is in an
            earlier call) or ``unlike`` (has posted another call instead).
    """

    source: int
    target: int
    kind: str


@dataclass(frozen=True)
class WaitPicture:
    """Groups of ranks and the links between them.

    Attributes:
        places: The groups, awaited ones first.
        links: Which group waits for which.
        cycle: Ranks of a deadlock cycle; empty where there is none.
    """

    places: tuple[WaitGroup, ...]
    links: tuple[Link, ...]
    cycle: tuple[int, ...]


def draw_waits(run: Run, waits: Waits, cause: Finding | None) -> WaitPicture:
    """Merge ranks that are in the same call and wait for the same ranks.

    Args:
        run: The run.
        waits: The wait-for graph.
        cause: The verdict's cause; where it is one call posted instead of another, its members
            wait for each other although none of them is behind.

    Returns:
        The merged graph; empty where no rank waits.
    """
    named = set(cause.diverging_ranks or cause.candidate_ranks) if cause is not None else set()
    unlike = _unlike(run, waits, cause)
    pending_calls = waits.pending_calls
    shown = set(pending_calls) | {
        rank for pending in pending_calls.values() for rank in pending.awaited
    }
    shown |= {rank for pair in unlike for rank in pair}
    exact: dict[object, list[int]] = {}
    for rank in sorted(shown):
        key = (_where(pending_calls.get(rank), waits, rank), rank in named)
        exact.setdefault(key, []).append(rank)
    groups = list(exact.values())
    merged = len(groups) > MOST_PLACES
    if merged:
        groups = _merge(run, waits, groups, named)
    number = {rank: index for index, group in enumerate(groups) for rank in group}
    links: dict[tuple[int, int], str] = {}
    for rank, pending in pending_calls.items():
        for kind, members in (("queued", pending.queued), ("absent", pending.absent)):
            for member in members:
                if number[rank] != number[member]:
                    links[number[rank], number[member]] = kind
    for one, other in unlike:
        links.setdefault((number[one], number[other]), "unlike")
    depths = _depths(len(groups), links, waits.cycle, number)
    places = [_place(run, waits, group, named, depths[n]) for n, group in enumerate(groups)]
    if merged:
        places = [replace(place, alike=len(place.ranks) > 1) for place in places]
    order = sorted(
        range(len(places)),
        key=lambda n: (depths[n] is None, depths[n] or 0, not places[n].odd, places[n].ranks),
    )
    at = {old: new for new, old in enumerate(order)}
    found = sorted((at[one], at[other], kind) for (one, other), kind in links.items())
    return WaitPicture(
        tuple(places[n] for n in order), tuple(Link(*link) for link in found), waits.cycle
    )


def _unlike(run: Run, waits: Waits, cause: Finding | None) -> list[tuple[int, int]]:
    """Return pairs of a peer and a diverging rank that posted different calls of one number."""
    if cause is None or cause.comm is None or cause.seq is None:
        return []
    diverging = cause.diverging_ranks
    inside = [
        rank
        for rank in cause.comm.ranks
        if (head := waits.heads.get(rank)) is not None
        and (head.comm, head.seq) == (cause.comm.key, cause.seq)
    ]
    here = [rank for rank in inside if rank in diverging]
    signatures = {waits.heads[rank].signature for rank in here}
    return [
        (peer, rank)
        for peer in inside
        if peer not in diverging and waits.heads[peer].signature not in signatures
        for rank in here
    ]


def _where(pending: PendingCall | None, waits: Waits, rank: int) -> object:
    if pending is not None:
        return pending.comm.key, pending.call.seq, pending.call.signature, pending.awaited
    head = waits.heads.get(rank)
    return None if head is None else (head.comm, head.seq, head.signature)


def _merge(run: Run, waits: Waits, groups: list[list[int]], named: set[int]) -> list[list[int]]:
    """Merge groups that are in the same operation on communicators of one kind."""
    alike: dict[object, list[int]] = {}
    for group in groups:
        rank = group[0]
        head = waits.heads.get(rank)
        key: object = None
        if head is not None:
            kind = run.communicators[head.comm].kind
            key = (kind, head.op, bool(waits.pending_calls.get(rank)))
        alike.setdefault((key, rank in named, rank in waits.ends), []).extend(group)
    return [sorted(ranks) for ranks in alike.values()]


def _depths(
    count: int, links: Mapping[tuple[int, int], str], cycle: tuple[int, ...], number: dict[int, int]
) -> list[int | None]:
    """Return each group's depth: 1 more than the least depth of the groups it waits for."""
    waiting = {source for (source, _), kind in links.items() if kind != "unlike"}
    unlike = {source for (source, _), kind in links.items() if kind == "unlike"}
    depths: list[int | None] = [None] * count
    for place in range(count):
        if place not in waiting:
            depths[place] = 1 if place in unlike else 0
    turning = {number[rank] for rank in cycle}
    changed = True
    while changed:
        changed = False
        for place in range(count):
            if depths[place] is not None or place in turning:
                continue
            ahead = [depths[target] for source, target in links if source == place]
            known = [depth for depth in ahead if depth is not None]
            if known:
                depths[place] = 1 + min(known)
                changed = True
    return depths


def _place(
    run: Run, waits: Waits, ranks: list[int], named: set[int], depth: int | None
) -> WaitGroup:
    head = waits.heads.get(ranks[0])
    known = run.by_rank.get(ranks[0])
    note = ""
    if known is None:
        note = str(Place.NOT_RECORDED if ranks[0] in run.unrecorded else Place.NO_RECORD)
    elif known.exited:
        note = str(Place.EXITED)
    elif head is None:
        note = str(Place.NO_CALL)
    return WaitGroup(
        ranks=tuple(ranks),
        call=head,
        comm=None if head is None else run.communicators[head.comm],
        note=note,
        odd=bool(named & set(ranks)),
        depth=depth,
    )
