"""A rank that posts what its peers post, and always after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from ncclscope.engine.case import Case
from ncclscope.model import Blame, Finding
from ncclscope.model.log import CallLog
from ncclscope.wording.names import comm_text, sentence

__all__ = ["Straggler"]

CALLS = 20
"""Number of late calls in a row that counts: one is chance."""
LATE_SECONDS = 0.2
"""Half of them by at least so much. A busy machine holds up a rank for less."""
KEPT = 4096
"""Newest calls of a communicator that are examined."""


class Straggler:
    """A rank posts the same calls as its peers, but long after all of them."""

    name = "straggler"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a latent finding for each rank that was last, where it was latest."""
        worst: dict[int, Finding] = {}
        delays: dict[int, float] = {}
        for key, comm in case.run.communicators.items():
            # Clocks of two hosts may differ by more than what is measured here.
            if len({rank.host for rank in case.run.members(key)}) != 1:
                continue
            for rank, seq, delay in _late(case.logs(key)):
                if delay <= delays.get(rank, 0.0):
                    continue
                delays[rank] = delay
                worst[rank] = Finding(
                    kind="straggler",
                    summary=(
                        f"{sentence(f'rank {rank}')} was the last to post each of {CALLS} calls "
                        f"on {comm_text(comm)} from call {seq} on, half of them more than "
                        f"{delay:.1f} s after its peers."
                    ),
                    comm=comm,
                    seq=seq,
                    blame=Blame.on((rank,)),
                    role="latent",
                    analyzer=self.name,
                    evidence=(f"its calls {seq} to {seq + CALLS - 1} agree with its peers'",),
                    inferred=("the work between these calls takes longer on this rank",),
                    extent=CALLS,
                )
        yield from worst.values()


def _late(logs: Mapping[int, CallLog]) -> Iterable[tuple[int, int, float]]:
    """Yield rank, first call and median delay in seconds of each row of late calls."""
    if len(logs) < 2:
        return
    first = max(log.first for log in logs.values())
    end = min(log.calls for log in logs.values()) + 1
    first = max(first, end - KEPT)
    times = {rank: [c.time_ns for c in log.span(first, end)] for rank, log in logs.items()}
    late, delays = -1, []
    for place in range(max(0, end - first)):
        posted = sorted((times[rank][place] or 0, rank) for rank in logs)
        (second, _), (latest, last) = posted[-2:]
        if posted[0][0] == 0 or latest == second:  # a call without a time proves nothing
            last = -1
        if last != late:
            late, delays = last, []
        delays.append((latest - second) / 1e9)
        if len(delays) == CALLS:
            if late >= 0 and median(delays) >= LATE_SECONDS:
                yield late, first + place - CALLS + 1, median(delays)
            delays = []
