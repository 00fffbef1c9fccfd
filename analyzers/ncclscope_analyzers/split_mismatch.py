"""Same v-collective or all_to_all, different sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ncclscope.engine.case import Case, may_hold
from ncclscope.engine.mismatch import ParameterMismatch
from ncclscope.model import Blame, Call, Communicator, Finding
from ncclscope.model.log import CallLog
from ncclscope.wording.mismatches import Unlike
from ncclscope.wording.names import rank_text, site_text

FRONT = 32
"""Calls checked in rings, counted back from the end or from the first divergence."""
BACK = 4096
"""Calls in which the first mismatch is searched where a ring has any."""
ALL = 1 << 62
"""Logs in memory are searched whole."""

Edge = tuple[int, int, int, int]
"""Sender, receiver, rows sent and rows expected."""

_FEW = 16


class SplitMismatch(ParameterMismatch):
    """One rank posted a v-collective, or an all_to_all, with other sizes than its peers expect."""

    name = "split_mismatch"
    parameter = "split"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield differences in common sizes, then all_to_all calls whose splits do not match.

        In an all_to_all, each receiver must expect as many rows as the sender sends. In a
        v-collective, a member's own rows must equal its own entry of the sizes.
        """
        yield from super().analyze(case)
        diverged = {divergence.comm.key: divergence.seq for divergence in case.divergences}
        whole = any(rank.details.get("splits") for rank in case.run.ranks)
        for key, comm in case.run.communicators.items():
            front = ALL if whole else FRONT
            finding = self._first_unfit(case, comm, diverged.get(key), front)
            if finding is not None and not whole:
                finding = self._first_unfit(case, comm, diverged.get(key), BACK)
            if finding is not None:
                yield finding
            yield from self._first_unlike(case, comm, diverged.get(key))

    def _first_unfit(
        self, case: Case, comm: Communicator, end: int | None, front: int
    ) -> Finding | None:
        logs = {
            place: log for place, _, log in _logs_by_place(case, comm) if log.calls >= log.first
        }
        for seq in _exchanges(logs.values(), end, front):
            calls = {
                place: log.call(seq) for place, log in logs.items() if log.first <= seq <= log.calls
            }
            unfit = [] if comm.is_partial else list(_unfit(calls, len(comm.ranks)))
            if unfit:
                return self._unfit_finding(case, comm, seq, calls, unfit)
        return None

    def _first_unlike(self, case: Case, comm: Communicator, end: int | None) -> Iterator[Finding]:
        """Yield the members of one call whose rows differ from their own entry of the sizes.

        Yield nothing where most members differ: rows and sizes then have different units.
        """
        fitting: Counter[int] = Counter()
        unlike: dict[int, list[Finding]] = {}
        for place, number, log in _logs_by_place(case, comm):
            if not may_hold(log, "all_gatherv", "reduce_scatterv"):
                continue
            stop = min(log.calls + 1, end or log.calls + 1)
            for call in log.span(max(log.first, stop - FRONT), stop):
                rows = _own_rows(call)
                if rows is None or call.sizes is None or place >= len(call.sizes):
                    continue
                if rows == call.sizes[place]:
                    fitting[call.seq] += 1
                else:
                    finding = self._unlike_finding(case, comm, number, call, rows)
                    unlike.setdefault(call.seq, []).append(finding)
        for seq, findings in sorted(unlike.items()):
            if fitting[seq] > len(findings):
                yield from findings
                return

    def _unlike_finding(
        self, case: Case, comm: Communicator, rank: int, call: Call, rows: int
    ) -> Finding:
        did = "passed" if call.op == "all_gatherv" else "took"
        sizes = ",".join(map(str, call.sizes or ()))
        entry = (call.sizes or ())[comm.ranks.index(rank)]
        return Finding(
            kind=self.name,
            summary=Unlike.ROWS.of(
                who=rank_text(case.run, rank), did=did, rows=rows, call=call, comm=comm, entry=entry
            ),
            comm=comm,
            seq=call.seq,
            blame=Blame.on((rank,), "certain"),
            odd=call,
            role="cause",
            extent=1,
            evidence=(Unlike.SIZES.of(rank, call, sizes, site_text(call)),),
        )

    def _unfit_finding(
        self,
        case: Case,
        comm: Communicator,
        seq: int,
        calls: Mapping[int, Call],
        unfit: list[Edge],
    ) -> Finding:
        counts = Counter(
            place for edge in {frozenset(edge[:2]) for edge in unfit} for place in edge
        )
        pairs = len({frozenset(edge[:2]) for edge in unfit})
        in_all = [place for place, count in counts.items() if count == pairs]
        alone = in_all if len(in_all) == 1 and pairs > 1 else []
        wrong = [place for place in counts if not _adds_up(calls[place])]
        if len(wrong) == 1:
            alone = wrong
        ranks = comm.ranks
        sender, receiver = unfit[0][:2]
        edges = [
            Unlike.EDGE.of(ranks[one], put, ranks[other], got) for one, other, put, got in unfit[:8]
        ]
        named = sorted(ranks[place] for place in alone or counts)
        code = Unlike.SPLITS
        if alone:
            code = Unlike.OWN_ROWS if alone == wrong else Unlike.OWN_SPLITS
        peer = next(place for place in counts if place not in alone)
        return Finding(
            kind=self.name,
            summary=code.of(
                who=rank_text(case.run, named[0]), seq=seq, comm=comm, ranks=named, edge=edges[0]
            ),
            comm=comm,
            seq=seq,
            blame=Blame.on(named, "certain") if alone else Blame.among(named),
            odd=calls[alone[0] if alone else sender],
            peers=calls[peer if alone else receiver],
            role="cause",
            extent=1,
            evidence=tuple(edges),
            inferred=() if alone else (Unlike.OPEN_SPLITS.of(),),
        )


def _logs_by_place(case: Case, comm: Communicator) -> Iterator[tuple[int, int, CallLog]]:
    """Yield the recorded members of a communicator: place in it, global rank and log."""
    logs = case.logs(comm.key)
    if len(logs) <= _FEW:  # of a large job: to search for these is faster
        places = sorted(comm.ranks.index(rank) for rank in logs if rank in comm.ranks)
        yield from ((at, comm.ranks[at], logs[comm.ranks[at]]) for at in places)
        return
    for place, rank in enumerate(comm.ranks):
        if (log := logs.get(rank)) is not None:
            yield place, rank, log


def _own_rows(call: Call) -> int | None:
    """Return a member's own rows in a v-collective; None where they are not known."""
    if call.op == "all_gatherv" and call.shape and len(call.shape) <= 4:
        return call.shape[0]
    if call.op == "reduce_scatterv" and call.out_shape:
        return call.out_shape[0]
    return None


def _exchanges(logs: Iterable[CallLog], end: int | None, front: int) -> Iterator[int]:
    """Yield the numbers of the all_to_all calls that all members keep, before they diverge.

    Equal signatures mean equal operations, so few calls have to be read.

    Args:
        logs: The members' calls.
        end: Number of the call at which they diverge; None where they do not.
        front: Calls that are read, counted back from there.
    """
    logs = list(logs)
    if len(logs) < 2 or not any(may_hold(log, "all_to_all") for log in logs):
        return
    log = logs[0]
    start = max(log.first, min(other.first for other in logs))
    stop = min(log.calls + 1, end or log.calls + 1)
    start = max(start, stop - front)
    known: dict[int, bool] = {}
    for seq, signature in enumerate(log.signatures(start, stop) if start < stop else (), start):
        if signature not in known:
            known[signature] = log.call(seq).op == "all_to_all"
        if known[signature]:
            yield seq


def _adds_up(call: Call) -> bool:
    """Return whether the splits of an all_to_all have as many rows as its tensors, if known."""
    parts = ((call.sizes, call.shape), (call.out_sizes, call.out_shape))
    return all(
        sum(sizes) == shape[0]
        for sizes, shape in parts
        if sizes is not None and shape and any(sizes)
    )


def _unfit(calls: Mapping[int, Call], size: int) -> Iterator[Edge]:
    """Yield each edge whose sent rows differ from the rows that its receiver expects."""
    for one, sent in calls.items():
        for other, received in calls.items():
            if sent.sizes is None or received.out_sizes is None:
                continue
            if len(sent.sizes) == len(received.out_sizes) == size:
                put, got = sent.sizes[other], received.out_sizes[one]
                if put != got:
                    yield one, other, put, got
