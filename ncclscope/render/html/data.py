"""Data for the page's script: calls side by side, and the timeline.

Each distinct call is listed once, and the rest refers to it by number: a job of 64 ranks posts a
handful of different calls, thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ncclscope.engine.case import Case
from ncclscope.engine.sequences.columns import (
    ColumnCell,
    ColumnTable,
    align_columns,
    transfer_columns,
)
from ncclscope.engine.verdict import Verdict
from ncclscope.model import Call, Communicator, State
from ncclscope.model.log import newest_of
from ncclscope.render.console.sides import differ_by_shape, differ_by_site
from ncclscope.wording.names import call_text, comm_text, replay_text, sizes_text

MOST_CELLS = 9000
"""Calls in all alignments together; further communicators are left out."""
MOST_EVENTS = 9000
"""Calls on the timeline."""
MOST_COLUMNS = 40
"""Columns of one alignment; nobody compares more side by side."""
WHYS = {"gap": -1, "ahead": -2, "gone": -3, "outside": -4}
"""Numbers for a cell without a call, by the reason: see ``WHY`` in report.js."""


class Calls:
    """Numbering of distinct calls.

    Attributes:
        entries: By number: operation, description and call site.
    """

    def __init__(self) -> None:
        self.entries: list[list[str]] = []
        self._numbers: dict[object, int] = {}
        self._texts: dict[object, int] = {}

    def number(self, call: Call) -> int:
        """Return the number of a call's operation, parameters and call site."""
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
    """Return the JSON data of the page."""
    calls = Calls()
    comms = _Comms(verdict)
    alignments = [_alignment_dict(one, calls, comms) for one in _alignments(verdict, case)]
    timeline = _timeline(verdict, calls, comms)
    cause = verdict.cause
    return {
        "calls": calls.entries,
        "comms": comms.entries,
        "alignments": alignments,
        "timeline": timeline,
        "diverging": [] if cause is None else list(cause.diverging_ranks or cause.candidate_ranks),
    }


class _Comms:
    def __init__(self, verdict: Verdict) -> None:
        self.entries: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        cause, recorded = verdict.cause, verdict.run.by_rank
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
                    # The page has rows only of ranks with a record.
                    "ranks": [rank for rank in comm.ranks if rank in recorded],
                }
            )

    def number(self, comm: Communicator) -> int:
        return self._numbers[comm.key]


def _alignments(verdict: Verdict, case: Case) -> Iterable[ColumnTable]:
    """Yield the cause's communicator first, then those with a divergence, then the others."""
    run, cause = verdict.run, verdict.cause
    diverged = {one.comm.key: one.seq for one in case.divergences}
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
        yield from (one for one in p2p if one.comm.key == main)
    budget = MOST_CELLS
    for key in keys:
        comm = run.communicators[key]
        is_main = key == main and not about_transfers
        seq = diverged.get(key)
        if is_main and cause is not None and cause.seq is not None:
            seq = cause.seq
        alignment = align_columns(
            comm,
            case.recorded(key),
            seq=seq,
            odd=_diverging(verdict, key),
            by_site=is_main and cause is not None and differ_by_site(cause),
            by_shape=is_main and cause is not None and differ_by_shape(cause),
            before=40 if is_main else 12 if seq is not None else 8,
            after=30 if is_main else 12 if seq is not None else 6,
        )
        if alignment is None:
            continue
        budget -= sum(len(column.cells) for column in alignment.columns)
        if budget < 0 and not is_main:
            return
        yield alignment
    if not about_transfers:
        yield from p2p
    else:
        yield from (one for one in p2p if one.comm.key != main)


def _transfers(verdict: Verdict) -> list[ColumnTable]:
    """Return the last sends and receives of each rank, for each communicator that has some."""
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


def _diverging(verdict: Verdict, key: str) -> tuple[int, ...]:
    for finding in verdict.findings:
        if finding.comm is not None and finding.comm.key == key:
            return finding.diverging_ranks or finding.candidate_ranks[-1:]
    return verdict.cause.diverging_ranks if verdict.cause is not None else ()


def _alignment_dict(alignment: ColumnTable, calls: Calls, comms: _Comms) -> dict[str, Any]:
    return {
        "comm": comms.number(alignment.comm),
        "seq": alignment.seq,
        "row": alignment.first_row,
        "aligned": alignment.aligned,
        "hidden": max(0, len(alignment.columns) - MOST_COLUMNS),
        "columns": [
            {
                "ranks": list(column.ranks),
                "calls": column.calls,
                "cells": [_cell(cell, calls) for cell in column.cells],
            }
            for column in alignment.columns[:MOST_COLUMNS]
        ],
    }


def _cell(cell: ColumnCell, calls: Calls) -> int | list[int]:
    """Return ``[number of the call, seq, state]``, with state 3 if it differs among the ranks.

    A cell without a call is the reason, one of ``WHYS``.
    """
    if cell.call is None:
        return WHYS[cell.why]
    state = 3 if len(cell.states) > 1 else int(cell.call.state)
    return [calls.number(cell.call), cell.call.seq, state]


def _timeline(verdict: Verdict, calls: Calls, comms: _Comms) -> dict[str, Any] | None:
    """Return the last calls per rank and communicator, in microseconds before the last call."""
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
    reporting = {rank.rank for rank in verdict.run.ranks if _reports_completion(rank.logs.values())}
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
                # Only a backend that reports completion has calls known to be pending.
                "open": number in reporting and kept[-1].state is not State.COMPLETED,
                "seen": None if last_seen is None else (last_seen - end) // 1000,
            }
        )
    hosts = {rank.host for rank in verdict.run.ranks if rank.host}
    return {"end_ns": str(end), "rows": rows, "hosts": len(hosts), "each": each}


def _reports_completion(logs: Iterable[Any]) -> bool:
    """Return whether a rank's records report the completion of any call."""
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
