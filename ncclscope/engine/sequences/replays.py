"""Ranks that replayed different CUDA graphs where they left the common sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclscope.engine.sequences.align import Edit
from ncclscope.model import Call, Rank
from ncclscope.model.log import CallLog

if TYPE_CHECKING:
    from ncclscope.engine.records import Records
    from ncclscope.engine.sequences.difference import Difference

LOOKAHEAD = 4096
"""Calls after a replay that are compared to find whether the replay was skipped."""


@dataclass(frozen=True)
class Block:
    """One replay of a graph, as a range of calls on one communicator.

    Attributes:
        graph: The graph's number on its rank.
        replay: The number of the replay.
        seq: Number of the first call.
        calls: Number of calls.
        digest: Their running hash, from zero.
    """

    graph: int
    replay: int
    seq: int
    calls: int
    digest: int

    @property
    def content(self) -> tuple[int, int]:
        """Key that is equal for equal calls on any rank: number of calls and digest."""
        return self.calls, self.digest


@dataclass(frozen=True)
class OtherGraph:
    """Two ranks replayed two different graphs from the same call on.

    Attributes:
        odd: The diverging rank's replay.
        peer: The peer's replay.
        odd_has: Number of the diverging rank's graph that equals the peer's; None without one.
        peer_has: Number of the peer's graph that equals the diverging rank's; None without one.
    """

    odd: Block
    peer: Block
    odd_has: int | None
    peer_has: int | None


def calls_on(rank: Rank, call: Call) -> int:
    """Return how many calls the graph of a replayed call has on its communicator; 0 if unknown."""
    graph = None if call.graph is None else rank.graphs.get(call.graph)
    return 0 if graph is None else graph.parts.get(call.comm, (0, 0))[0]


def block_at(rank: Rank, log: CallLog, seq: int) -> Block | None:
    """Return the replay that a call belongs to.

    Args:
        rank: The rank.
        log: Its calls on the communicator.
        seq: Number of the call.

    Returns:
        None for an eager or overwritten call, or where its graph is unknown.
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


def other_graph(records: Records, difference: Difference) -> OtherGraph | None:
    """Return whether two sides diverged because they replayed different graphs; None if not.

    Both began a replay at the same call, and one of them also has the other's graph under another
    number. Where neither has the other's graph, or the numbers are equal, one graph was captured
    differently, and the difference is in a call. The number of graphs into which the same calls
    were split does not matter.
    """
    if difference.item:
        return None
    odd, peer = (
        _side(records, difference, call) for call in (difference.odd_call, difference.peer_call)
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
        if mine.graph == theirs.graph:
            continue  # the same graph, captured differently: all ranks number graphs alike
        if mine.seq != start or theirs.seq != start:
            continue
        if difference.seq > start + min(mine.calls, theirs.calls):
            continue
        key = difference.comm.key
        found = OtherGraph(mine, theirs, _has(odd[0], key, theirs), _has(peer[0], key, mine))
        if found.odd_has is not None or found.peer_has is not None:
            return found
    return None


def replays_left_out(records: Records, difference: Difference) -> int:
    """Return how many replays of one graph the diverging rank left out; 0 if not whole replays.

    Args:
        records: The records of all ranks.
        difference: A difference that begins with calls that a rank left out.
    """
    first, seq = difference.first, difference.seq
    peer = _side(records, difference, difference.peer_call)
    if peer is None or first.inserted or first.start:
        return 0
    graphs = []
    while seq < difference.seq + first.deleted:
        block = block_at(*peer, seq)
        if block is None or block.seq != seq:
            return 0
        graphs.append(block.graph)
        seq += block.calls
    whole = seq == difference.seq + first.deleted and len(set(graphs)) == 1
    return len(graphs) if whole else 0


def replay_edits(odd: tuple[Rank, CallLog], peer: tuple[Rank, CallLog], seq: int) -> list[Edit]:
    """Return the edits between two ranks where whole replays differ.

    Replays are long and similar: compared call by call, a shift of each replay by one call would
    cost less than one deleted replay.

    Args:
        odd: The diverging rank and its calls.
        peer: A peer and its calls.
        seq: The first differing call.

    Returns:
        The edits; empty where the calls themselves have to be compared.
    """
    mine, theirs = block_at(*odd, seq), block_at(*peer, seq)
    if mine and theirs and (mine.seq, mine.calls) == (theirs.seq, theirs.calls):
        # Equally many calls, none skipped: captured in another order.
        return [Edit(0, 1, 0, 1, 0)] if mine.seq < seq or _as_many(mine, odd, peer) else []
    for start in {block.seq for block in (mine, theirs) if block is not None}:
        first, same = block_at(*odd, start), block_at(*peer, start)
        if not first or not same or (first.seq, first.graph) != (same.seq, same.graph):
            continue  # other graphs may be pieces of one another
        if first.seq == start and first.calls != same.calls:
            edit = _captured_fewer(first, same, odd[1], peer[1], seq)
            return [] if edit is None else [edit]
    for block, inserted, deleted in ((theirs, 0, 1), (mine, 1, 0)):
        if block is None or block.seq != seq:
            continue
        inserted, deleted = inserted * block.calls, deleted * block.calls
        own = odd[1].signatures(seq + inserted, min(odd[1].calls + 1, seq + inserted + LOOKAHEAD))
        other = peer[1].signatures(seq + deleted, min(peer[1].calls + 1, seq + deleted + LOOKAHEAD))
        matched = min(len(own), len(other))
        alike = _but_replayed(odd[1].call(seq), peer[1].call(seq))
        if matched > (block.calls if alike else 0) and list(own[:matched]) == list(other[:matched]):
            return [Edit(0, inserted, 0, deleted, matched)]
    return []


def _captured_fewer(
    mine: Block, theirs: Block, odd: CallLog, peer: CallLog, seq: int
) -> Edit | None:
    """Return what one of two replays from one call on lacks, in a row, of the other's calls.

    Args:
        mine: The replay of the diverging rank.
        theirs: That of its peer.
        odd: The diverging rank's calls.
        peer: The peer's calls.
        seq: The first differing call.
    """
    own = list(odd.signatures(seq, min(odd.calls + 1, mine.seq + mine.calls)))
    other = list(peer.signatures(seq, min(peer.calls + 1, theirs.seq + theirs.calls)))
    more = mine.calls - theirs.calls
    longer, shorter = (own[more:], other) if more > 0 else (other[-more:], own)
    matched = min(len(longer), len(shorter))
    if longer[:matched] != shorter[:matched]:
        return None
    return Edit(0, max(more, 0), 0, max(-more, 0), matched)


def _as_many(block: Block, odd: tuple[Rank, CallLog], peer: tuple[Rank, CallLog]) -> bool:
    """Return whether two replays from one call on hold the same calls, in any order."""
    end = block.seq + block.calls
    contents = [sorted(log.signatures(block.seq, end)) for _, log in (odd, peer)]
    return contents[0] == contents[1]


def _but_replayed(one: Call, other: Call) -> bool:
    """Return whether two calls differ only in that a graph replayed one of them."""
    return (one.replay is None) != (other.replay is None) and all(
        getattr(one, name) == getattr(other, name)
        for name in ("op", "dtype", "redop", "root", "numel")
    )


def _side(records: Records, difference: Difference, posted: Call) -> tuple[Rank, CallLog] | None:
    """Return a rank that posted a call at the difference, and its calls."""
    logs: Mapping[int, CallLog] = records.logs(difference.comm.key)
    for number in (*difference.odd, *difference.peers):
        log = logs.get(number)
        if log is None or not log.first <= difference.seq <= log.calls:
            continue
        if log.signatures(difference.seq, difference.seq + 1)[0] == posted.signature:
            return records.run.by_rank[number], log
    return None


def _has(rank: Rank, key: str, block: Block) -> int | None:
    for graph in rank.graphs.values():
        if graph.parts.get(key) == block.content:
            return graph.number
    return None
