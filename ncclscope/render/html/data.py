"""What the page's script draws: sequences side by side and the timeline, in a few numbers.

Calls are listed once, and everything else names them by their number: a job of 64 ranks posts
a handful of different calls, thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ncclscope.analysis.case import Case
from ncclscope.analysis.sequences.columns import (
    ColumnCell,
    ColumnTable,
    align_columns,
    transfer_columns,
)
from ncclscope.analysis.verdict import Verdict
from ncclscope.analysis.wording import call_text, comm_text, replay_text, sizes_text
from ncclscope.model import Call, Communicator, State
from ncclscope.model.log import newest_of

__all__ = ["Calls", "page_data"]

MOST_CELLS = 9000
"""Calls in all sheets together; with more communicators each sheet becomes shorter."""
MOST_EVENTS = 9000
"""Calls on the timeline."""
MOST_LANES = 40
"""Columns of one sheet; more than so many ways to differ are not read side by side."""
WHYS = {"gap": -1, "ahead": -2, "gone": -3, "outside": -4}


class Calls:
    """Numbers for calls that look alike, so that each is written once."""

    def __init__(self) -> None:
        self.entries: list[list[str]] = []
        self._numbers: dict[object, int] = {}
        self._texts: dict[object, int] = {}

    def number(self, call: Call) -> int:
        """The number of a call's operation, parameters and place in the program."""
        what = (call.op, call.redop, call.shape, call.numel, call.dtype, call.root, call.peer)
        replay = None if call.replay is None else replay_text(call, numbered=False)
        key = (*what, call.sizes, call.site, call.captured, replay)
        found = self._texts.get(key)
        if found is None:
            text = call_text(call)
            if call.sizes is not None and call.op != "new_group":
                text += f" sizes {sizes_text(call.sizes)}"
            if call.captured:
                text += " (captured)"
            if call.replay is not None:
                text += f" ({replay})"
            entry = (call.op, text, call.site or "")
            found = self._numbers.setdefault(entry, len(self.entries))
            if found == len(self.entries):
                self.entries.append(list(entry))
            self._texts[key] = found
        return found


def page_data(verdict: Verdict, case: Case) -> dict[str, Any]:
    """Returns what stands in the page as JSON."""
    calls = Calls()
    comms = _Comms(verdict)
    column_tables = [_sheet(column_table, calls, comms) for column_table in _sheets(verdict, case)]
    timeline = _timeline(verdict, calls, comms)
    cause = verdict.cause
    return {
        "calls": calls.entries,
        "comms": comms.entries,
        "sheets": column_tables,
        "timeline": timeline,
        "odd": list(cause.diverging_ranks or cause.candidate_ranks) if cause is not None else [],
    }


class _Comms:
    def __init__(self, verdict: Verdict) -> None:
        self.entries: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        cause = verdict.cause
        first = cause.comm.key if cause is not None and cause.comm is not None else ""
        for key, comm in sorted(
            verdict.run.communicators.items(),
            key=lambda item: (item[0] != first, item[1].label, item[1].ranks),
        ):
            self._numbers[key] = len(self.entries)
            self.entries.append(
                {
                    "label": comm.label or comm.key[:12],
                    "text": comm_text(comm),
                    "backend": comm.backend,
                    "ranks": list(comm.ranks),
                }
            )

    def number(self, comm: Communicator) -> int:
        return self._numbers[comm.key]


def _sheets(verdict: Verdict, case: Case) -> Iterable[ColumnTable]:
    """The cause's communicator first, then those whose members differ, then the others."""
    run, cause = verdict.run, verdict.cause
    diverged = {divergence.comm.key: divergence.seq for divergence in case.divergences}
    marked = {
        finding.comm.key: finding.seq
        for finding in reversed(verdict.findings)
        if finding.comm is not None and finding.seq is not None
    }
    for rank in cause.diverging_ranks if cause is not None else ():
        if (head := case.waits.heads.get(rank)) is not None:
            diverged.setdefault(head.comm, head.seq)
    p2p = _transfers(verdict)
    main = cause.comm.key if cause is not None and cause.comm is not None else ""
    keys = sorted(
        (
            key
            for key, comm in run.communicators.items()
            if not comm.creates_groups or key in marked
        ),
        key=lambda key: (key != main, key not in diverged, key not in marked, key),
    )
    about_transfers = cause is not None and any(
        call is not None and call.peer is not None for call in (cause.odd, cause.peers)
    )
    if about_transfers:
        yield from (column_table for column_table in p2p if column_table.comm.key == main)
    budget = MOST_CELLS
    for key in keys:
        comm = run.communicators[key]
        is_main = key == main and not about_transfers
        seq = diverged.get(key)
        if is_main and cause is not None and cause.seq is not None:
            seq = cause.seq
        column_table = align_columns(
            comm,
            case.recorded(key),
            seq=seq,
            odd=_odd(verdict, key),
            by_site=is_main and _told_by_site(verdict),
            before=40 if is_main else 12 if seq is not None else 8,
            after=30 if is_main else 12 if seq is not None else 6,
        )
        if column_table is None:
            continue
        budget -= sum(len(column.cells) for column in column_table.columns)
        if budget < 0 and not is_main:
            return
        yield column_table
    if not about_transfers:
        yield from p2p
    else:
        yield from (column_table for column_table in p2p if column_table.comm.key != main)


def _transfers(verdict: Verdict) -> list[ColumnTable]:
    """The last sends and receives of each rank on each communicator that has some."""
    rows = sum(len(rank.p2p) for rank in verdict.run.ranks)
    last = max(4, min(24, 3000 // max(1, rows)))
    found: dict[str, dict[int, Sequence[Call]]] = {}
    for rank in verdict.run.ranks:
        for key, sent in rank.p2p.items():
            if newest := newest_of(sent, last):
                found.setdefault(key, {})[rank.rank] = newest
    return [
        transfer_columns(verdict.run.communicators[key], ranks, last=last)
        for key, ranks in sorted(found.items())
        if key in verdict.run.communicators
    ]


def _odd(verdict: Verdict, key: str) -> tuple[int, ...]:
    for finding in verdict.findings:
        if finding.comm is not None and finding.comm.key == key:
            return finding.diverging_ranks or finding.candidate_ranks[-1:]
    return verdict.cause.diverging_ranks if verdict.cause is not None else ()


def _told_by_site(verdict: Verdict) -> bool:
    cause = verdict.cause
    if cause is None or cause.odd is None or cause.peers is None:
        return False
    return cause.odd.signature == cause.peers.signature and cause.odd.site != cause.peers.site


def _sheet(column_table: ColumnTable, calls: Calls, comms: _Comms) -> dict[str, Any]:
    return {
        "comm": comms.number(column_table.comm),
        "seq": column_table.seq,
        "row": column_table.first_row,
        "aligned": column_table.aligned,
        "hidden": max(0, len(column_table.columns) - MOST_LANES),
        "lanes": [
            {
                "ranks": list(column.ranks),
                "calls": column.calls,
                "cells": [_cell(cell, calls) for cell in column.cells],
            }
            for column in column_table.columns[:MOST_LANES]
        ],
    }


def _cell(cell: ColumnCell, calls: Calls) -> int | list[int]:
    """``[number of the call, seq, state]``; the state is 3 where it differs among the ranks."""
    if cell.call is None:
        return WHYS[cell.why]
    state = 3 if len(cell.states) > 1 else int(cell.call.state)
    return [calls.number(cell.call), cell.call.seq, state]


def _timeline(verdict: Verdict, calls: Calls, comms: _Comms) -> dict[str, Any] | None:
    """The last calls of each rank on each communicator, in microseconds before the last one."""
    found: list[tuple[int, Communicator, bool, list[Call]]] = []
    columns = sum(len(rank.logs) + len(rank.p2p) for rank in verdict.run.ranks)
    each = max(3, min(60, MOST_EVENTS // max(1, columns)))
    for rank in verdict.run.ranks:
        for key, log in rank.logs.items():
            kept = log.span(max(log.first, log.calls + 1 - each), log.calls + 1)
            _add(found, rank.rank, verdict.run.communicators.get(key), False, kept)
        for key, sent in rank.p2p.items():
            newest = newest_of(sent, each)
            _add(found, rank.rank, verdict.run.communicators.get(key), True, newest)
    times = [call.time_ns for *_, kept in found for call in kept if call.time_ns is not None]
    if not times:
        return None
    end = max(times)
    tells = {rank.rank for rank in verdict.run.ranks if _tells(rank.logs.values())}
    seen = {rank.rank: rank.last_seen_ns for rank in verdict.run.ranks}
    rows = []
    for number, comm, p2p, kept in found:
        last_seen = seen[number]
        rows.append(
            {
                "rank": number,
                "comm": comms.number(comm),
                "p2p": p2p,
                "at": [(end - (call.time_ns or 0)) // 1000 for call in kept],
                "call": [calls.number(call) for call in kept],
                "seq": kept[0].seq,
                # What a backend does not tell is not drawn as if it were known.
                "open": number in tells and kept[-1].state is not State.COMPLETED,
                "seen": None if last_seen is None else (last_seen - end) // 1000,
            }
        )
    hosts = {rank.host for rank in verdict.run.ranks if rank.host}
    return {"end_ns": str(end), "rows": rows, "hosts": len(hosts), "each": each}


def _tells(logs: Iterable[Any]) -> bool:
    """Whether a rank's records say of any call that it has completed."""
    return any(
        call.state is State.COMPLETED
        for log in logs
        for call in log.span(max(log.first, log.calls - 8), log.calls + 1)
    )


def _add(
    found: list[tuple[int, Communicator, bool, list[Call]]],
    rank: int,
    comm: Communicator | None,
    p2p: bool,
    kept: Sequence[Call],
) -> None:
    timed = [call for call in kept if call.time_ns]
    if comm is not None and timed and not comm.creates_groups:
        found.append((rank, comm, p2p, timed))
