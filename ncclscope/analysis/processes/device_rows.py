"""Where each rank stands on its device, in words and as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ncclscope.analysis.wording import call_text, comm_text, ranks_text, replay_text
from ncclscope.model import Call, Communicator, Finding, Rank, Run
from ncclscope.model.device import DeviceProgress

__all__ = ["DeviceRow", "describe_device", "device_notes", "device_rows"]

_SHOWN = 6
"""Different places that are told one by one."""


@dataclass(frozen=True)
class DeviceRow:
    """Ranks that are in the same place on one communicator.

    Attributes:
        ranks: Which.
        comm: The communicator.
        stand: Where they are.
        call: What they stand in; None where all has finished, or that is not known or kept.
    """

    ranks: tuple[int, ...]
    comm: Communicator
    pending: DeviceProgress
    call: Call | None

    @property
    def words(self) -> str:
        """Where they are, in a few words."""
        pending = self.pending
        if pending.unknown:
            return f"not known: {pending.unknown}"
        if pending.at is None:
            return "all finished"
        place = f"call {pending.at}" if self.call is None else _call_words(self.call)
        if pending.is_inside is False:
            return f"before {place}, not entered"
        if pending.at > pending.handed_over:
            return f"{place}, being posted"
        return f"in {place}" if pending.is_inside else f"in or before {place}"


def device_rows(run: Run, key: str | None = None) -> list[DeviceRow]:
    """Returns where the ranks are on their devices, those together that are in one place.

    Args:
        run: The run.
        key: Of one communicator; all when absent.
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
                # One rank may have cut into pieces what another captured as a whole.
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
    """Yields where the members of a cause's communicator are on their devices; for its evidence."""
    if cause.comm is None:
        return
    rows = device_rows(run, cause.comm.key)
    for row in rows[:_SHOWN]:
        pending = row.pending
        who = f"on the device of {ranks_text(row.ranks)}"
        where = comm_text(row.comm)
        if pending.unknown:
            yield f"how far {who.removeprefix('on ')} is on {where} is not known {pending.unknown}"
            continue
        told = f"{who}, {pending.finished} of {pending.posted} calls on {where} have finished"
        told += _age([run.by_rank[rank] for rank in row.ranks], row.comm.key)
        if pending.at is None:
            yield told
            continue
        place = f"call {pending.at}" if row.call is None else _call_words(row.call)
        if pending.is_inside:
            yield f"{told}; {place}, is entered and not finished"
        elif pending.is_inside is False:
            yield f"{told}; {place}, is not entered: the stream is behind other work"
        elif pending.at > pending.handed_over:
            yield f"{told}; {place}, is not known to have been handed over"
        else:
            yield f"{told}; the next is {place}"
    if len(rows) > _SHOWN:
        yield f"the devices are in {len(rows) - _SHOWN} more places there"


def device_notes(run: Run) -> Iterator[str]:
    """Yields why nothing was counted on devices, where that was asked for."""
    off: dict[str, list[int]] = {}
    for rank in run.ranks:
        if isinstance(told := rank.details.get("device_progress"), str):
            off.setdefault(told, []).append(rank.rank)
    for told, ranks in off.items():
        yield f"{ranks_text(ranks)}: progress on the device is {told}"


def _age(ranks: Sequence[Rank], key: str) -> str:
    """Says how long before their last sign of life the last call had finished."""
    seconds = [
        (rank.last_seen_ns - finished) / 1e9
        for rank in ranks
        if rank.last_seen_ns is not None and (finished := rank.device[key].finished_ns) is not None
    ]
    least = min(seconds, default=0.0)
    if len(seconds) < len(ranks) or least < 1:
        return ""
    return f", the last about {least:.0f} s before the last sign of life"


def _call(rank: Rank, key: str, pending: DeviceProgress) -> Call | None:
    log = rank.logs.get(key)
    if log is None or pending.at is None or not log.first <= pending.at <= log.calls:
        return None
    return log.call(pending.at)


def _call_words(call: Call) -> str:
    text = f"call {call.seq}, {call_text(call)}"
    return text if call.replay is None else f"{text}, {replay_text(call)}"
