"""All members are in the same call, and it does not complete."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.analysis.case import Case
from ncclscope.analysis.wording import call_text, comm_text, plural, ranks_text
from ncclscope.model import Call, Communicator, Finding

__all__ = ["Stalled"]


class Stalled:
    """All members of a communicator stand in the same call, and it does not complete."""

    name = "stalled"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yields a finding for each communicator whose members wait for nobody, and in vain."""
        if case.differences:
            return
        for comm, call in self._common_heads(case):
            seconds = case.longest_common_quiet(comm.ranks)
            if seconds is None:
                continue
            yield Finding(
                kind=self.name,
                summary=(
                    f"All ranks of {comm_text(comm)} have posted call {call.seq}, "
                    f"{call_text(call)}, and none has completed it for {seconds:.0f} s: no rank "
                    f"diverged, the call itself does not come to an end."
                ),
                comm=comm,
                seq=call.seq,
                candidate_ranks=comm.ranks,
                peers=call,
                confidence="likely",
                analyzer=self.name,
                evidence=(
                    f"{ranks_text(comm.ranks)} posted #{call.seq} on {comm_text(comm)}, "
                    f"{call_text(call)}; on none it is completed",
                    f"{plural(call.seq - 1, 'call')} before it completed",
                    f"all showed life for at least {seconds:.0f} s after it",
                ),
                inferred=(
                    "a link, a device or the library stands still; the program's order is in order",
                ),
            )

    def _common_heads(self, case: Case) -> Iterable[tuple[Communicator, Call]]:
        """Calls that all members of a communicator have posted and stand in."""
        heads = case.waits.heads
        seen = set()
        for call in heads.values():
            comm = case.run.communicators[call.comm]
            if comm.key in seen or len(comm.ranks) < 2:
                continue
            seen.add(comm.key)
            own = [heads.get(rank) for rank in comm.ranks]
            same = {(head.comm, head.seq) for head in own if head is not None}
            if None not in own and len(same) == 1:
                yield comm, call
