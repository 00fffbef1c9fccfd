"""Ranks that replayed different CUDA graphs where they left the common sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclscope.logs import CallLog
from ncclscope.model import Call, Rank

if TYPE_CHECKING:
    from ncclscope.analysis.case import Case
    from ncclscope.analysis.difference import Difference

__all__ = ["Block", "OtherGraph", "block_at", "calls_on", "other_graph"]


@dataclass(frozen=True)
class Block:
    """One replay of a graph, as a stretch of calls on one communicator.

    Attributes:
        graph: The graph's number on its rank.
        replay: How often it had been replayed.
        seq: The first call.
        calls: How many they are.
        digest: Their running hash, from zero.
    """

    graph: int
    replay: int
    seq: int
    calls: int
    digest: int

    @property
    def content(self) -> tuple[int, int]:
        """What is the same for the same calls, on whatever rank."""
        return self.calls, self.digest


@dataclass(frozen=True)
class OtherGraph:
    """Two ranks replayed two graphs from the same call on.

    Attributes:
        odd: What the one replayed.
        peer: What the other replayed.
        odd_has: Number of the graph in which the one has the other's calls; None where none.
        peer_has: The same the other way round.
    """

    odd: Block
    peer: Block
    odd_has: int | None
    peer_has: int | None


def calls_on(rank: Rank, call: Call) -> int:
    """Returns how many calls the graph of a replayed call has on its communicator; 0 if unknown."""
    graph = None if call.graph is None else rank.graphs.get(call.graph)
    return 0 if graph is None else graph.parts.get(call.comm, (0, 0))[0]


def block_at(rank: Rank, log: CallLog, seq: int) -> Block | None:
    """Returns the replay that a call belongs to.

    Returns:
        None for a call that was posted by itself, or is not kept, or of whose graph nothing is
        known.
    """
    if not log.first <= seq <= log.calls:
        return None
    call = log.call(seq)
    graph = None if call.graph is None else rank.graphs.get(call.graph)
    if call.replay is None or graph is None or call.comm not in graph.parts:
        return None
    count, digest = graph.parts[call.comm]
    near = log.span(max(log.first, seq - count + 1), seq + 1)
    same = (call.graph, call.replay.number)
    own = [each.seq for each in near if each.replay and (each.graph, each.replay.number) == same]
    return Block(graph.number, call.replay.number, own[0], count, digest)


def other_graph(case: Case, difference: Difference) -> OtherGraph | None:
    """Finds whether two sides parted because they replayed different graphs.

    Both began to replay at the same call, and one of them has the other's graph as well: that
    it replayed the wrong one, or the others did. Where neither has the other's, the same graph
    was captured differently, and what differs is the call. Nor does it count into how many
    graphs the same calls were cut.
    """
    if difference.witness:
        return None
    odd, peer = (
        _side(case, difference, call) for call in (difference.odd_call, difference.peer_call)
    )
    if odd is None or peer is None:
        return None
    starts = {
        block.seq for side in (odd, peer) if (block := block_at(*side, difference.seq)) is not None
    }
    for start in sorted(starts):
        mine, theirs = block_at(*odd, start), block_at(*peer, start)
        if mine is None or theirs is None or mine.content == theirs.content:
            continue
        if mine.seq != start or theirs.seq != start:
            continue
        if difference.seq > start + min(mine.calls, theirs.calls):
            continue
        key = difference.comm.key
        found = OtherGraph(mine, theirs, _has(odd[0], key, theirs), _has(peer[0], key, mine))
        if found.odd_has is not None or found.peer_has is not None:
            return found
    return None


def _side(case: Case, difference: Difference, posted: Call) -> tuple[Rank, CallLog] | None:
    """Returns a rank that posted a call as the differing one, and its calls."""
    logs: Mapping[int, CallLog] = case.logs(difference.comm.key)
    for number in (*difference.odd, *difference.peers):
        log = logs.get(number)
        if log is None or not log.first <= difference.seq <= log.calls:
            continue
        if log.signatures(difference.seq, difference.seq + 1)[0] == posted.signature:
            return case.run.by_rank[number], log
    return None


def _has(rank: Rank, key: str, block: Block) -> int | None:
    for graph in rank.graphs.values():
        if graph.parts.get(key) == block.content:
            return graph.number
    return None
