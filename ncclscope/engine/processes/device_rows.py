"""The progress of each rank on its device, in words and as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ncclscope.model import Call, Communicator, Finding, Rank, Run
from ncclscope.model.device import DeviceProgress
from ncclscope.wording.device import Progress
from ncclscope.wording.names import call_text, comm_text, replay_text

_SHOWN = 6
"""Different positions that are listed one by one."""


@dataclass(frozen=True)
class DeviceRow:
    """Ranks whose devices are at the same position of one communicator.

    Attributes:
        ranks: Global ranks.
        comm: The communicator.
        pending: Their progress on the device.
        call: Their pending call; None where all calls finished, or it is unknown or overwritten.
    """

    ranks: tuple[int, ...]
    comm: Communicator
    pending: DeviceProgress
    call: Call | None

    @property
    def words(self) -> str:
        """The position in a few words."""
        pending = self.pending
        if pending.unknown:
            return f"unknown: {pending.unknown}"
        if pending.at is None:
            return str(Progress.ALL)
        place = f"call {pending.at}" if self.call is None else _call_words(self.call)
        if pending.is_inside is False:
            return Progress.ROW_BEFORE.of(place)
        if pending.at > pending.handed_over:
            return Progress.ROW_POSTED.of(place)
        return f"in {place}" if pending.is_inside else Progress.ROW_AROUND.of(place)


def device_rows(run: Run, key: str | None = None) -> list[DeviceRow]:
    """Return the ranks' positions on their devices, one row for ranks at the same position.

    Args:
        run: The run.
        key: The communicator's key; all communicators by default.
    """
    groups: dict[object, list[Rank]] = {}
    for rank in run.ranks:
        for own, pending in rank.device.items():
            if key in (None, own) and pending.posted:
                call = _call(rank, own, pending)
                is_handed_over = pending.at is None or pending.at <= pending.handed_over
                alike = (
                    pending.posted,
                    pending.finished,
                    pending.entered,
                    pending.unknown,
                    is_handed_over,
                )
                # Ranks may have captured the same calls into different numbers of graphs.
                what = None if call is None else (call.signature, call.graph, call.replay)
                groups.setdefault((own, alike, what), []).append(rank)
    rows = []
    for where, ranks in groups.items():
        assert isinstance(where, tuple)
        pending = ranks[0].device[where[0]]
        rows.append(
            DeviceRow(
                tuple(rank.rank for rank in ranks),
                run.communicators[where[0]],
                pending,
                _call(ranks[0], where[0], pending),
            )
        )
    return sorted(rows, key=lambda row: (row.comm.label, row.comm.key, row.ranks))


def describe_device(run: Run, cause: Finding) -> Iterator[str]:
    """Yield evidence lines on the device progress of the members of a cause's communicator."""
    if cause.comm is None:
        return
    rows = device_rows(run, cause.comm.key)
    for row in rows[:_SHOWN]:
        pending = row.pending
        device = Progress.DEVICE.of(row.ranks)
        where = comm_text(row.comm)
        if pending.unknown:
            yield Progress.UNKNOWN.of(device, where, pending.unknown)
            continue
        text = Progress.FINISHED.of(device, pending.finished, pending.posted, where)
        text += _age([run.by_rank[rank] for rank in row.ranks], row.comm.key)
        if pending.at is None:
            yield text
            continue
        place = f"call {pending.at}" if row.call is None else _call_words(row.call)
        if pending.is_inside:
            yield Progress.INSIDE.of(text, place)
        elif pending.is_inside is False:
            yield Progress.BEFORE.of(text, place)
        elif pending.at > pending.handed_over:
            yield Progress.NOT_ENQUEUED.of(text, place)
        else:
            yield Progress.NEXT.of(text, place)
    if len(rows) > _SHOWN:
        yield Progress.MORE.of(len(rows) - _SHOWN)


def device_notes(run: Run) -> Iterator[str]:
    """Yield why device progress was not counted although it was requested."""
    off: dict[str, list[int]] = {}
    for rank in run.ranks:
        if isinstance(reason := rank.details.get("device_progress"), str):
            off.setdefault(reason, []).append(rank.rank)
    for reason, ranks in off.items():
        yield Progress.NOT_COUNTED.of(ranks, reason)


def _age(ranks: Sequence[Rank], key: str) -> str:
    """Say how long before the last heartbeat the last call had finished; empty below 1 s."""
    seconds = [
        (rank.last_seen_ns - finished) / 1e9
        for rank in ranks
        if rank.last_seen_ns is not None and (finished := rank.device[key].finished_ns) is not None
    ]
    least = min(seconds, default=0.0)
    if len(seconds) < len(ranks) or least < 1:
        return ""
    return Progress.LAST.of(least)


def _call(rank: Rank, key: str, pending: DeviceProgress) -> Call | None:
    log = rank.logs.get(key)
    if log is None or pending.at is None or not log.first <= pending.at <= log.calls:
        return None
    return log.call(pending.at)


def _call_words(call: Call) -> str:
    text = f"call {call.seq}, {call_text(call)}"
    return text if call.replay is None else f"{text}, {replay_text(call)}"
