"""Texts and tables of the page, as plain values for the template."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from ncclscope import __version__
from ncclscope.engine.case import Case
from ncclscope.engine.processes.device_rows import device_rows
from ncclscope.engine.processes.motion import Motion, read_motions
from ncclscope.engine.processes.stack_classes import TreeNode, build_tree, classify
from ncclscope.engine.table import Cell
from ncclscope.engine.verdict import Verdict
from ncclscope.engine.waits.wait_groups import WaitPicture, draw_waits
from ncclscope.model import Call, Finding, Run
from ncclscope.render.console.attach import stretch_of, where_text
from ncclscope.render.console.blocks import duration, who_text
from ncclscope.render.console.verdict import input_facts
from ncclscope.render.html.data import page_data
from ncclscope.render.html.graph import draw_graph
from ncclscope.wording.names import (
    call_text,
    comm_text,
    plural,
    ranks_text,
    sentence,
    site_text,
)

MANY = 16
"""Ranks above which equal rows are merged into one that can be expanded."""
MOST_COLUMNS = 4
"""Communicators with columns of their own; with more, each rank has a list instead."""
MOST_DEVICE_ROWS = 200
"""Rows of the device table; ranks with equal counts share a row."""
_CONFIDENCE = {
    "certain": "This is certain",
    "likely": "This is likely, not certain: a part of it is inferred",
    "ambiguous": "This is ambiguous: the evidence does not single out one side",
}


def build_document(verdict: Verdict) -> dict[str, Any]:
    """Return the variables of the template, as plain values."""
    run = verdict.run
    how = "recorded" if _is_recorded(verdict) else "seen"
    case = Case(run)
    waits = draw_waits(run, case.waits, verdict.cause)
    return {
        "version": __version__,
        "how": how,
        "sources": list(run.sources),
        "input": _input(verdict),
        "verdict": _verdict(verdict, how),
        "facts": _facts(verdict, how),
        "statements": _statements(verdict, how),
        "others": [_other(finding) for finding in verdict.findings if finding != verdict.cause],
        "table": _table(verdict, waits),
        "device": _device(run),
        "graph": draw_graph(waits),
        "stacks": _stacks(verdict),
        "sources_seen": [source.to_dict() for source in verdict.evidence],
        "unseen": list(verdict.coverage.unseen),
        "notes": list(verdict.notes),
        "data": page_data(verdict, case),
    }


def _device(run: Run) -> list[dict[str, Any]]:
    """Return the rows of the device table, those with a pending call first."""
    rows = sorted(device_rows(run), key=lambda row: row.pending.at is None)
    return [
        {
            "ranks": ranks_text(row.ranks).partition(" ")[2],
            "comm": row.comm.label or row.comm.key[:12],
            "posted": row.pending.posted,
            "entered": row.pending.entered,
            "finished": row.pending.finished,
            "where": row.words,
        }
        for row in rows[:MOST_DEVICE_ROWS]
    ]


def _is_recorded(verdict: Verdict) -> bool:
    return any(rank.logs for rank in verdict.run.ranks)


def _input(verdict: Verdict) -> list[str]:
    run = verdict.run
    parts = input_facts(run, recorded=_is_recorded(verdict))
    times = [call.time_ns for rank in run.ranks if (call := rank.last_call()) and call.time_ns]
    if times:
        parts.append(f"last call at {_moment(max(times))}")
    if run.snapshot is not None and run.snapshot.time_ns > 1:
        parts.append(f"sampled at {_moment(run.snapshot.time_ns)}")
    return parts


def _moment(time_ns: int) -> str:
    try:
        moment = datetime.fromtimestamp(time_ns / 1e9, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _verdict(verdict: Verdict, how: str) -> dict[str, Any]:
    cause = verdict.cause
    found: dict[str, Any] = {"status": verdict.status, "word": verdict.status.upper()}
    if cause is None:
        return {**found, "who": "", "kind": "", "first": verdict.summary, "second": ""}
    quiet = verdict.quiet_seconds
    second = _CONFIDENCE[cause.confidence]
    if how == "seen":
        second += ", from the state of the processes"
    elif cause.confidence == "certain":
        second += ", by the records alone"
    if quiet is not None and quiet >= 1:
        second += f"; there was no progress for {duration(quiet)}"
    return {
        **found,
        "kind": cause.kind.replace("_", " "),
        "who": who_text(verdict.causes),
        "first": verdict.summary,
        "second": f"{second}.",
        "confidence": cause.confidence,
    }


def _facts(verdict: Verdict, how: str) -> list[dict[str, str]]:
    """Return the facts of the verdict: term, text and how it is known."""
    cause = verdict.cause
    if cause is None:
        return []
    facts = []
    if cause.comm is not None:
        where = comm_text(cause.comm)
        if cause.comm.backend:
            where += f" ({cause.comm.backend})"
        facts.append(("Communicator", where))
    if cause.transfer is not None:
        facts.append(("Request", str(cause.transfer.get("request") or "")))
        facts.append(
            ("Transfer", f"{cause.transfer.get('engine')} and {cause.transfer.get('peer')}")
        )
    if cause.seq is not None:
        facts.append(("Call", f"#{cause.seq}"))
    diverging = cause.diverging_ranks
    if diverging and (cause.odd is not None or cause.peers is not None):
        # A rank that never posted the call is shown with its last call elsewhere.
        elsewhere = cause.kind in ("dead_rank", "not_joined") and cause.odd is not None
        term = sentence(ranks_text(diverging)) + (", last call" if elsewhere else "")
        facts.append((term, _posted(cause.odd)))
    elif cause.odd is not None:
        facts.append(("One side", _posted(cause.odd)))
    if cause.peers is not None:
        facts.append(("Its peers" if diverging else "The other side", _posted(cause.peers)))
    return [{"term": term, "text": text, "how": how} for term, text in facts]


def _posted(call: Call | None) -> str:
    return f"{call_text(call)}{site_text(call)}" if call is not None else "posted nothing there"


def _statements(verdict: Verdict, how: str) -> list[dict[str, str]]:
    cause = verdict.cause
    if cause is None:
        return []
    known = how if cause.analyzer != "stack_classes" else "seen"
    found = [{"how": known, "text": text} for text in cause.evidence]
    return found + [{"how": "inferred", "text": text} for text in cause.inferred]


def _other(finding: Finding) -> dict[str, Any]:
    return {
        "role": finding.role,
        "kind": finding.kind.replace("_", " "),
        "text": finding.summary,
        "confidence": finding.confidence,
    }


def _awaited(picture: WaitPicture) -> dict[int, str]:
    """Return, for each waiting rank, the ranks it waits for."""
    targets: dict[int, set[int]] = {}
    for link in picture.links:
        targets.setdefault(link.source, set()).update(picture.places[link.target].ranks)
    return {
        rank: ranks_text(awaited)
        for number, awaited in targets.items()
        for rank in picture.places[number].ranks
    }


def _table(verdict: Verdict, picture: WaitPicture) -> dict[str, Any]:
    """Return the table of ranks, with equal rows grouped in a job of more than ``MANY`` ranks."""
    run, cause = verdict.run, verdict.cause
    waits = _awaited(picture)
    diverging = verdict.diverging_ranks
    candidates = set(cause.candidate_ranks) if cause is not None else set()
    labels = sorted(
        {
            label
            for row in verdict.table
            for label, cell in row.cells.items()
            if cell.calls or cell.delta
        }
    )
    groups: dict[object, list[dict[str, Any]]] = {}
    for row in verdict.table:
        number = row.rank.rank
        cells = [{"label": label, **_cell(row.cells.get(label))} for label in labels]
        remark = "diverging" if number in diverging else "candidate" if number in candidates else ""
        entry = {
            "rank": number,
            "host": row.rank.host,
            "pid": row.rank.pid or "",
            "gpu": "" if row.rank.gpu is None else row.rank.gpu,
            "labels": " ".join(f"{name}{value}" for name, value in row.rank.labels.items()),
            "lost": row.rank.lost,
            "cells": cells,
            "remark": remark,
            "waits": waits.get(number, ""),
        }
        group: object = number
        if len(verdict.table) > MANY:
            group = (tuple(tuple(cell.items()) for cell in cells), remark)
        groups.setdefault(group, []).append(entry)
    unrecorded = run.unrecorded.intersection(run.missing)
    gone = [number for number in run.missing if number not in unrecorded]
    return {
        "labels": labels,
        "listed": len(labels) > MOST_COLUMNS,
        "hosts": any(row.rank.host for row in verdict.table),
        "pids": any(row.rank.pid for row in verdict.table),
        "named": any(row.rank.labels for row in verdict.table),
        "gpus": any(row.rank.gpu is not None for row in verdict.table),
        "lost": any(row.rank.lost for row in verdict.table),
        "waits": any(entry["waits"] for rows in groups.values() for entry in rows),
        "groups": [_group(rows) for rows in groups.values()],
        "missing": ranks_text(gone) if gone else "",
        "unrecorded": ranks_text(unrecorded) if unrecorded else "",
        "window": run.window,
    }


def _group(rows: list[dict[str, Any]]) -> dict[str, Any]:
    hosts = {row["host"] for row in rows}
    waits = {row["waits"] for row in rows}
    return {
        "ranks": ranks_text(row["rank"] for row in rows).partition(" ")[2],
        "numbers": [row["rank"] for row in rows],
        "host": hosts.pop() if len(hosts) == 1 else plural(len(hosts), "host"),
        "waits": waits.pop() if len(waits) == 1 else "see each rank",
        "rows": rows,
    }


def _cell(cell: Cell | None) -> dict[str, Any]:
    if cell is None:
        return {"calls": "", "delta": "", "last": "", "state": ""}
    delta = ""
    if cell.delta:
        delta = f"{'+' if cell.delta > 0 else chr(0x2212)}{abs(cell.delta)}"
    last = cell.newest
    return {
        "calls": cell.calls,
        "delta": delta,
        "last": call_text(last) if last is not None else "",
        "state": last.state.word if last is not None else "",
    }


def _stacks(verdict: Verdict) -> dict[str, Any] | None:
    snapshot = verdict.run.snapshot
    if snapshot is None:
        return None
    motions = read_motions(snapshot)
    diverging = verdict.diverging_ranks
    return {
        "host": snapshot.host,
        "gap": f"{snapshot.gap:.1f}",
        "classes": [
            {
                "ranks": ranks_text(group.ranks),
                "diverging": bool(diverging & set(group.ranks)),
                "where": where_text(group.motion),
                "conditions": ", ".join(sorted({one.condition for one in group.motions})),
                "why": group.motion.why,
                "cpu": f"{max(one.cpu for one in group.motions):.0%}",
            }
            for group in classify(motions.values())
        ],
        "processes": [
            {
                "rank": one.rank,
                "pid": one.worker.pid,
                "title": one.worker.title,
                "thread": one.thread,
                "condition": one.condition,
            }
            for one in motions.values()
        ],
        "tree": [
            _node(root) for root in build_tree({r: s for r, s in motions.items() if s.frames})
        ],
        "native": list(_native(motions.values())),
    }


def _node(node: TreeNode) -> dict[str, Any]:
    """Return a stretch of frames without a branch, and the branches at its end."""
    stretch = stretch_of(node)
    return {
        "ranks": ranks_text(node.ranks),
        "still": len(node.still) == len(node.ranks),
        "frames": [f"{one.frame.name}  {one.frame.file}:{one.frame.line}" for one in stretch],
        "children": [_node(child) for child in stretch[-1].children],
    }


def _native(motions: Iterable[Motion]) -> Iterable[dict[str, Any]]:
    for group in classify(motion for motion in motions if motion.frames):
        for thread in group.motion.worker.stacks[-1].threads[:32]:
            named = [frame for frame in thread.native if not frame.startswith("???")]
            if named:
                yield {
                    "rank": group.ranks[0],
                    "thread": thread.name,
                    "frames": list(reversed(named[-8:])),
                }
