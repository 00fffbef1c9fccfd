"""Calls posted inside one NCCL group, whose order does not matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclscope.engine.sequences.align import Divergence, find_divergence
from ncclscope.model import Call, Communicator
from ncclscope.model.log import CallLog
from ncclscope.model.memory import Tail

LONGEST = 1024
"""Maximum number of calls of one group that are read."""


@dataclass(frozen=True)
class GroupSwap:
    """The same calls in one group, in another order on some ranks.

    Attributes:
        comm: The communicator.
        seq: First call that differs.
        end: Last call of the group.
        length: Calls of the group on this communicator.
        ranks: The ranks that have posted it.
        odd: The ranks with the rarer order; empty when none is rarer.
        odd_call: The call that they, or one side, posted as ``seq``.
        peer_call: The call that the others posted as ``seq``.
    """

    comm: Communicator
    seq: int
    end: int
    length: int
    ranks: tuple[int, ...]
    odd: tuple[int, ...]
    odd_call: Call
    peer_call: Call


def part_outside_groups(
    comm: Communicator, logs: Mapping[int, CallLog]
) -> tuple[Divergence | None, list[GroupSwap]]:
    """Find the first divergence that is not merely another order inside an NCCL group."""
    swaps: list[GroupSwap] = []
    while True:
        divergence = find_divergence(comm, logs)
        if divergence is None:
            return None, swaps
        swap = _only_reordered(divergence, logs)
        if swap is None:
            return divergence, swaps
        swaps.append(swap)
        logs = {rank: Tail(log, swap.end + 1) for rank, log in logs.items()}


def _only_reordered(divergence: Divergence, logs: Mapping[int, CallLog]) -> GroupSwap | None:
    if len(divergence.groups) < 2 or not divergence.exact:
        return None
    posted = [rank for group in divergence.groups for rank in group]
    bounds = set()
    for rank in posted:
        found = _bounds(logs[rank], divergence.seq)
        if found is None:
            return None
        bounds.add(found)
    if len(bounds) != 1:
        return None
    start, end = bounds.pop()
    contents = {tuple(sorted(logs[rank].signatures(start, end + 1))) for rank in posted}
    if len(contents) != 1:
        return None
    odd = tuple(rank for group in divergence.groups[1:] for rank in group)
    return GroupSwap(
        comm=divergence.comm,
        seq=divergence.seq,
        end=end,
        length=end - start + 1,
        ranks=tuple(sorted(posted)),
        odd=odd if divergence.majority else (),
        odd_call=logs[divergence.groups[1][0]].call(divergence.seq),
        peer_call=logs[divergence.groups[0][0]].call(divergence.seq),
    )


def _bounds(log: CallLog, seq: int) -> tuple[int, int] | None:
    """Return the first and the last call of the NCCL group that contains a call."""
    group = _group_of(log.call(seq))
    if group is None:
        return None  # most calls are in no group: skip reading their neighbours
    near = log.span(max(log.first, seq - LONGEST), seq + LONGEST)
    own = [call.seq for call in near if _group_of(call) == group]
    return own[0], own[-1]


def _group_of(call: Call) -> tuple[int, int, int] | None:
    """Return the key of a call's group: each replay of a graph posts its groups anew."""
    if call.group is None:
        return None
    if call.replay is None:
        return call.group, 0, 0
    return call.group, call.graph or 0, call.replay.number
