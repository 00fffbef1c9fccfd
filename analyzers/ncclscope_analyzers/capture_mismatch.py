"""The same call, captured into a CUDA graph or replayed from one on some ranks only."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.findings import from_difference, subject
from ncclscope.engine.mismatch import PARAMETERS, ParameterMismatch
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.replays import OtherGraph, other_graph
from ncclscope.model import Call, Finding
from ncclscope.wording.names import call_text, comm_text, plural, ranks_text, replay_text


class CaptureMismatch(ParameterMismatch):
    """Ranks captured, replayed or ran calls that their peers did not, or replayed another graph.

    NCCL requires all members to do the same: capture a call, replay it from a CUDA graph, or run
    it eagerly.
    """

    name = "capture_mismatch"
    parameter = "captured"
    # Compared call by call, two graphs that differ in length or content resemble any of these.
    refines = ("extra_call", "missing_call", *PARAMETERS)

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each difference in how calls were posted."""
        for difference in case.described:
            found = other_graph(case, difference)
            if found is not None:
                yield self._other(case, difference, found)
            elif self._concerns(difference):
                yield self._mismatch(case, difference)

    def _summary(self, case: Case, difference: Difference) -> str:
        odd, peer = difference.odd_call, difference.peer_call
        if not difference.odd:
            return super()._summary(case, difference)
        did, instead = _way(odd, ""), _way(peer, " it")
        if odd.replay is None and peer.replay is None:
            did, instead = ("captured", "ran it eagerly")
            if not odd.captured:
                did, instead = ("eagerly ran", "captured it into a CUDA graph")
        return (
            f"{subject(case, difference)} {did} call {difference.seq} on "
            f"{comm_text(difference.comm)}, {call_text(odd)}{_which(odd)}; "
            f"{ranks_text(difference.peers)} {instead}{_which(peer)}."
        )

    def _text(self, call: Call) -> str:
        if call.replay is not None:
            return f"{call_text(call)}, {replay_text(call)}"
        return super()._text(call)

    def _other(self, case: Case, difference: Difference, found: OtherGraph) -> Finding:
        odd, peer = found.odd, found.peer
        where = f"call {odd.seq} on {comm_text(difference.comm)}"
        sides = [f"graph {block.graph}, of {plural(block.calls, 'call')}" for block in (odd, peer)]
        summary = (
            f"At {where} {ranks_text(difference.peers)} replayed different CUDA graphs, "
            f"{sides[0]}, and {sides[1]}; the records do not show which side diverged."
        )
        if difference.odd:
            summary = (
                f"{subject(case, difference)} replayed another CUDA graph than its peers as "
                f"{where} and those after it: {sides[0]}; {ranks_text(difference.peers)} replayed "
                f"{sides[1]}."
            )
        ranks = ranks_text(difference.odd) if difference.odd else "one side"
        peers = ranks_text(difference.peers) if difference.odd else "the other side"
        known = []
        if found.odd_has is not None:
            known.append(f"the graph that {peers} replayed is graph {found.odd_has} on {ranks}")
        if found.peer_has is not None:
            known.append(f"the graph that {ranks} replayed is graph {found.peer_has} on {peers}")
        return from_difference(
            case,
            difference,
            kind=self.name,
            analyzer=self.name,
            summary=summary,
            extent=odd.calls,
            evidence=tuple(known),
        )


def _way(call: Call, what: str) -> str:
    """Return how a call was posted: replayed, captured or eagerly."""
    if call.replay is not None:
        return f"replayed{what}"
    return f"captured{what}" if call.captured else f"posted{what} eagerly"


def _which(call: Call) -> str:
    return "" if call.replay is None else f" ({replay_text(call)})"
