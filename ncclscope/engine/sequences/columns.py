"""The calls of a communicator's members side by side, around one call.

Each column shows the ranks that posted the same calls. All columns are aligned with one of them,
the reference: an inserted call has a row of its own, a deleted call leaves a gap, and a replaced
call is in the row of the call that it replaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclscope.engine.sequences.align import Edit, compare, edits
from ncclscope.model import Call, Communicator
from ncclscope.model.log import CallLog

Slot = tuple[int, int, int]
"""Row of a call: the reference's call, 0 if inserted before it or 1 if matched, and an index."""


@dataclass(frozen=True)
class ColumnCell:
    """One column in one row.

    Attributes:
        call: The posted call; None where there is none.
        why: Why there is none: ``gap`` (deleted), ``ahead`` (not posted yet), ``gone``
            (overwritten) or ``outside`` (not shown).
        states: The states of the call on the column's ranks, the least advanced first.
    """

    call: Call | None
    why: str = ""
    states: tuple[str, ...] = ()


@dataclass(frozen=True)
class CallColumn:
    """Ranks that posted the same calls, as far as they are shown.

    Attributes:
        ranks: Global ranks.
        cells: One for each row.
        calls: Total number of calls of each rank; for transfers, the last number.
    """

    ranks: tuple[int, ...]
    cells: tuple[ColumnCell, ...]
    calls: int


@dataclass(frozen=True)
class ColumnTable:
    """Aligned calls of one communicator's members.

    Attributes:
        comm: The communicator.
        seq: First differing call; None where the members agree as far as they go.
        columns: The reference first, then the diverging ranks', then the others.
        first_row: Index of the row of ``seq``; None without one.
        aligned: Whether the calls of a row correspond. Sends and receives do not: each rank
            numbers its own.
    """

    comm: Communicator
    seq: int | None
    columns: tuple[CallColumn, ...]
    first_row: int | None
    aligned: bool = True


def align_columns(
    comm: Communicator,
    logs: Mapping[int, CallLog],
    *,
    seq: int | None,
    odd: Sequence[int] = (),
    by_site: bool = False,
    by_shape: bool = False,
    before: int = 40,
    after: int = 24,
) -> ColumnTable | None:
    """Align the members' calls in columns.

    Args:
        comm: The communicator.
        logs: Each member's calls with common numbers, by global rank.
        seq: The first differing call; None to show the last calls.
        odd: Ranks that must not be the reference.
        by_site: Whether equal calls from different call sites count as different.
        by_shape: Whether ranks whose calls differ only in their shapes have columns of their own.
        before: Number of rows before that call.
        after: Number of rows from it on.

    Returns:
        None where no call is kept.
    """
    kept = dict(logs)
    if not any(log.calls >= log.first for log in kept.values()):
        return None
    place = seq
    if place is None:
        # Center on the first call that the least advanced rank lacks: others wait in it.
        place = max(1, min(log.calls for log in logs.values()) + 1)
    groups = _groups(kept, place - before, place + after, by_site=by_site, by_shape=by_shape)
    weight = {ranks: (bool(set(odd) & set(ranks)), -len(ranks), ranks) for ranks in groups}
    holding = [ranks for ranks in groups if kept[ranks[0]].calls >= kept[ranks[0]].first]
    reference = min(holding, key=lambda ranks: (weight[ranks], -kept[ranks[0]].calls))
    order = sorted(groups, key=lambda ranks: (ranks != reference, not weight[ranks][0], ranks))
    placed = {
        ranks: _place(kept[ranks[0]], kept[reference[0]], place, before, after, by_site=by_site)
        for ranks in order
    }
    slots = sorted({slot for found in placed.values() for slot in found})
    slots = [slot for slot in slots if -before <= slot[0] < after]
    columns = tuple(_column(ranks, kept, placed[ranks], slots, place) for ranks in order)
    row = None
    if seq is not None:
        rows = [number for number, slot in enumerate(slots) if slot >= (0, 0, 0)]
        row = rows[0] if rows else None
    return ColumnTable(comm, seq, columns, row)


def transfer_columns(
    comm: Communicator, sent: Mapping[int, Sequence[Call]], *, last: int = 40
) -> ColumnTable:
    """Show the last sends and receives of each rank in columns, without aligning them.

    Args:
        comm: The communicator.
        sent: Each rank's sends and receives, oldest first.
        last: Maximum number of rows.
    """
    columns = []
    for rank, calls in sorted(sent.items()):
        shown = [ColumnCell(call, states=(call.state.word,)) for call in calls[-last:]]
        padding = [ColumnCell(None, "outside")] * (last - len(shown))
        columns.append(CallColumn((rank,), (*padding, *shown), calls[-1].seq if calls else 0))
    empty = min(
        next((n for n, cell in enumerate(column.cells) if cell.call), last) for column in columns
    )
    cut = tuple(CallColumn(column.ranks, column.cells[empty:], column.calls) for column in columns)
    return ColumnTable(comm, None, cut, None, aligned=False)


def _groups(
    logs: Mapping[int, CallLog], start: int, stop: int, *, by_site: bool, by_shape: bool
) -> list[tuple[int, ...]]:
    """Group ranks that posted the same calls in ``[start, stop)``."""
    alike: dict[object, list[int]] = {}
    for rank, log in sorted(logs.items()):
        low, high = max(log.first, start), min(log.calls + 1, stop)
        key: tuple[object, ...] = (low, min(log.calls, stop))
        if low < high:
            key += (tuple(log.signatures(low, high)),)
            if by_site:
                key += (tuple(log.sites(low, high)),)
            if by_shape:
                key += (tuple(call.shape for call in log.span(low, high)),)
        alike.setdefault(key, []).append(rank)
    return [tuple(ranks) for ranks in alike.values()]


def _place(
    log: CallLog, reference: CallLog, place: int, before: int, after: int, *, by_site: bool
) -> dict[Slot, int]:
    """Return the slot of each of a column's calls, relative to call ``place``."""
    placed: dict[Slot, int] = {}
    for seq in range(max(log.first, place - before), min(log.calls + 1, place)):
        placed[seq - place, 1, 0] = seq
    found: Sequence[Edit] = ()
    both = min(log.calls, reference.calls)
    if log is not reference and both >= place >= max(log.first, reference.first):
        found = _edits(log, reference, place, by_site=by_site)
    own, theirs = place, 0
    steps = list(found)
    while own <= log.calls and theirs < after:
        if steps and own == place + steps[0].start:
            edit = steps.pop(0)
            common = min(edit.inserted, edit.deleted)
            for number in range(common):
                placed[theirs + number, 1, 0] = own + number
            for number in range(edit.inserted - common):
                placed[theirs + common, 0, number] = own + common + number
            own, theirs = own + edit.inserted, theirs + edit.deleted
            continue
        if own >= log.first:
            placed[theirs, 1, 0] = own
        own, theirs = own + 1, theirs + 1
    return placed


def _edits(log: CallLog, reference: CallLog, place: int, *, by_site: bool) -> list[Edit]:
    if not by_site:
        return compare(log, reference, place)
    texts: dict[object, int] = {}
    numbers = [
        [
            texts.setdefault((call.signature, call.site), len(texts))
            for call in one.span(place, min(one.calls + 1, place + 512))
        ]
        for one in (log, reference)
    ]
    return edits(*numbers)


def _column(
    ranks: tuple[int, ...],
    logs: Mapping[int, CallLog],
    placed: Mapping[Slot, int],
    slots: Sequence[Slot],
    place: int,
) -> CallColumn:
    log = logs[ranks[0]]
    held = sorted(placed)
    cells = []
    for slot in slots:
        seq = placed.get(slot)
        if not held:
            cells.append(ColumnCell(None, "ahead" if place + slot[0] > log.calls else "gone"))
        elif seq is not None:
            states = sorted({logs[rank].call(seq).state for rank in ranks})
            cells.append(ColumnCell(log.call(seq), states=tuple(state.word for state in states)))
        elif slot < held[0]:
            cells.append(ColumnCell(None, _before(log, placed[held[0]])))
        elif slot < held[-1]:
            cells.append(ColumnCell(None, "gap"))
        else:
            ended = placed[held[-1]] == log.calls
            cells.append(ColumnCell(None, "ahead" if ended else "outside"))
    return CallColumn(ranks, tuple(cells), log.calls)


def _before(log: CallLog, seq: int) -> str:
    """Return why a column has no call before its first one."""
    if seq > log.first:
        return "outside"
    return "gone" if log.first > 1 or not log.anchored else "gap"
