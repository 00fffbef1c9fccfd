"""Selection of a part of a run: ranks, communicators and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ncclscope.errors import UsageError
from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.model.log import CallLog
from ncclscope.model.memory import ListLog

CONTEXT = 50
"""Default number of calls on each side of ``--around``."""


@dataclass(frozen=True)
class Selection:
    """Selected part of a run; by default all of it.

    Attributes:
        ranks: First and last rank of each span.
        comms: Labels, or prefixes of keys, of communicators.
        around: Sequence number of a call on its communicator.
        context: Number of calls on each side of that call.
        last: Number of last calls of each rank.
        last_ns: Time before the newest call of the run, in nanoseconds.
    """

    ranks: tuple[tuple[int, int], ...] = ()
    comms: tuple[str, ...] = ()
    around: int | None = None
    context: int = CONTEXT
    last: int | None = None
    last_ns: int | None = None

    @property
    def cuts(self) -> bool:
        """Whether the selection leaves out calls, not only ranks or communicators."""
        return not (self.around is None and self.last is None and self.last_ns is None)


def select(run: Run, selection: Selection) -> Run:
    """Return the selected part of a run; calls keep their sequence numbers.

    If a rank has no selected call on a communicator, its last one there is kept, so that its
    progress stays visible.

    Raises:
        UsageError: The selection names no rank or no communicator of the run.
    """
    if selection == Selection():
        return run
    ranks = [rank for rank in run.ranks if _is_wanted(rank.rank, selection)]
    if not ranks:
        raise UsageError("--ranks names no rank of this run", f"it has {len(run.ranks)} ranks")
    comms = dict(run.communicators)
    if selection.comms:
        comms = {key: comm for key, comm in comms.items() if _is_named(comm, selection)}
        if not comms:
            labels = sorted({comm.label or comm.key[:12] for comm in run.communicators.values()})
            shown = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
            raise UsageError("--comm names no communicator of this run", f"it has {shown}")
    since = None
    if selection.last_ns is not None:
        times = [call.time_ns for rank in ranks if (call := rank.last_call(transfers=True))]
        since = max((time for time in times if time), default=0) - selection.last_ns
    others = run.others if not (selection.ranks or selection.comms or selection.cuts) else ()
    cut = tuple(_cut(rank, comms, selection, since) for rank in ranks)
    return replace(run, ranks=cut, communicators=comms, others=others)


def _is_wanted(rank: int, selection: Selection) -> bool:
    return not selection.ranks or any(low <= rank <= high for low, high in selection.ranks)


def _is_named(comm: Communicator, selection: Selection) -> bool:
    return any(
        name == comm.label or (name and comm.key.startswith(name)) for name in selection.comms
    )


def _cut(
    rank: Rank, comms: dict[str, Communicator], selection: Selection, since: int | None
) -> Rank:
    logs: dict[str, CallLog] = {key: log for key, log in rank.logs.items() if key in comms}
    p2p: dict[str, Sequence[Call]] = {key: sent for key, sent in rank.p2p.items() if key in comms}
    if selection.cuts:
        spans = {key: _span(log, selection, since) for key, log in logs.items()}
        if selection.last is not None:
            _keep_last(spans, selection.last)
        kept = [call.position for calls in spans.values() for call in calls]
        first = min(kept, default=0)
        last = max(kept, default=0) if selection.around is not None else None
        logs = {
            key: ListLog(log.communicator, spans[key] or _end(log), anchored=log.anchored)
            for key, log in logs.items()
        }
        p2p = {
            key: [
                call
                for call in sent
                if call.position >= first and (last is None or call.position <= last)
            ]
            for key, sent in p2p.items()
        }
    records = sum(log.calls + 1 - log.first for log in logs.values())
    records += sum(len(sent) for sent in p2p.values())
    lost = sum(log.first - 1 for log in logs.values())
    return replace(rank, logs=logs, p2p=p2p, records=records, lost=lost)


def _span(log: CallLog, selection: Selection, since: int | None) -> list[Call]:
    """Return the selected calls of one communicator, which are contiguous."""
    low, high = log.first, log.calls
    if selection.around is not None:
        low = max(low, selection.around - selection.context)
        high = min(high, selection.around + selection.context)
    if selection.last is not None:
        low = max(low, high + 1 - selection.last)
    calls = list(log.span(low, high + 1)) if low <= high else []
    if since is not None:
        recent = next((n for n, call in enumerate(calls) if (call.time_ns or 0) >= since), None)
        calls = [] if recent is None else calls[recent:]
    return calls


def _keep_last(spans: dict[str, list[Call]], last: int) -> None:
    """Reduce ``spans`` to the last ``last`` calls of a rank, over all communicators."""
    positions = sorted(call.position for calls in spans.values() for call in calls)
    first = positions[-last] if len(positions) > last > 0 else -1
    for key, calls in spans.items():
        spans[key] = [call for call in calls if call.position >= first] if last else []


def _end(log: CallLog) -> list[Call]:
    return [log.call(log.calls)] if log.calls >= log.first else []
