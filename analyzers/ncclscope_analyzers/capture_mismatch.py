"""The same call, captured into a CUDA graph or replayed from one on some ranks only."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.findings import from_difference
from ncclscope.engine.mismatch import PARAMETERS, ParameterMismatch
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.replays import OtherGraph, other_graph
from ncclscope.model import Finding
from ncclscope.wording.mismatches import Unlike, captured, different_graphs


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
        if not difference.odd:
            return super()._summary(case, difference)
        return captured(case.run, difference)

    def _other(self, case: Case, difference: Difference, found: OtherGraph) -> Finding:
        odd, peer = found.odd, found.peer
        names: tuple[object, object] = difference.odd, difference.peers
        if not difference.odd:
            names = Unlike.ONE_SIDE, Unlike.OTHER_SIDE
        graphs = [(block.graph, block.calls) for block in (odd, peer)]
        return from_difference(
            case,
            difference,
            kind=self.name,
            summary=different_graphs(case.run, difference, odd.seq, graphs),
            extent=odd.calls,
            evidence=tuple(
                Unlike.SAME_GRAPH.of(there, number, here)
                for number, here, there in ((found.odd_has, *names), (found.peer_has, *names[::-1]))
                if number is not None
            ),
        )
