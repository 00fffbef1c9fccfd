"""Screen of ``ncclscope attach``: state of each process, merged stacks, and data sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ncclscope.engine.processes.evidence import absent_ranks
from ncclscope.engine.processes.motion import Motion, read_engines, read_motions
from ncclscope.engine.processes.stack_classes import StackClass, TreeNode, build_tree, classify
from ncclscope.engine.verdict import Verdict
from ncclscope.model.snapshot import Snapshot
from ncclscope.render.console.blocks import (
    add_row,
    coverage_block,
    item,
    knowledge,
    plain_table,
    right,
    section,
    unwrapped,
    wrapped,
)
from ncclscope.render.console.transfers import transfer_block
from ncclscope.render.console.verdict import render_verdict, verdict_panel
from ncclscope.wording.names import plural, ranks_text

_LIBRARIES = re.compile(r"nccl|c10d|gloo", re.IGNORECASE)
"""Native threads are shown if they belong to one of these communication libraries."""
_INNERMOST = 5
"""C frames shown per thread."""
_TRUNK = 3
"""Frames shown of a stretch without branches, if it is longer by more than one."""
_STATES = {
    "moving": "moves",
    "still": "still",
    "stopped": "STOPPED",
    "ended": "ENDED",
    "unread": "unread",
}
_AGREEMENT = {None: "", True: "agrees", False: "DISAGREES"}


def render_attach(verdict: Verdict, width: int) -> RenderableType:
    """Return the screen of a run with a process snapshot; ``width`` is in columns."""
    snapshot = verdict.run.snapshot
    assert snapshot is not None
    motions = read_motions(snapshot)
    stacks = [_processes(snapshot, motions, verdict), *_tree(motions), *_native(motions)]
    if any(rank.logs for rank in verdict.run.ranks):
        return Group(render_verdict(verdict, width), *stacks, *_data_sources(verdict))
    parts = [_heading(snapshot), verdict_panel(verdict), *stacks, *transfer_block(verdict.run)]
    if verdict.cause is not None:
        parts.append(knowledge(verdict.cause, "seen"))
    parts += [*coverage_block(verdict.coverage), *_data_sources(verdict)]
    if verdict.notes:
        parts += [section("notes"), *map(item, verdict.notes)]
    return Group(*parts)


def _heading(snapshot: Snapshot) -> Text:
    return Text(
        f"{plural(len(snapshot.workers), 'process')} on {snapshot.host}, sampled for "
        f"{snapshot.gap:.1f} s; nothing was injected",
        style="dim",
    )


def _processes(
    snapshot: Snapshot, motions: Mapping[int, Motion], verdict: Verdict
) -> RenderableType:
    rank = Column("rank", justify="right")
    table = plain_table(rank, right("pid"), unwrapped("state"), right("cpu"), wrapped("where"))
    diverging = verdict.diverging_ranks
    for group in _groups(motions):
        one = group.motion
        pid = str(one.worker.pid) if len(group.ranks) == 1 else ""
        if 1 < len(group.ranks) <= 4:
            pid = "\n".join(str(motion.worker.pid) for motion in group.motions)
        low, high = (f(motion.cpu for motion in group.motions) for f in (min, max))
        cpu = f"{high:.0%}" if high - low < 0.05 else f"{low:.0%}-{high:.0%}"
        state = one.worker.samples[-1].state if one.worker.samples else "?"
        where = ("" if one.frames else _replaced(one)) or where_text(one)
        add_row(
            table,
            ranks_text(group.ranks).partition(" ")[2],
            pid,
            f"{_STATES[one.condition]} ({state})",
            cpu,
            where + (f"; {one.why}" if one.why else ""),
            style="bold red" if diverging & set(group.ranks) else "",
        )
    for engine in read_engines(snapshot):
        letter = engine.worker.samples[-1].state if engine.worker.samples else "?"
        state = f"{_STATES[engine.condition]} ({letter})"
        row = ("engine", str(engine.worker.pid), state, f"{engine.cpu:.0%}", where_text(engine))
        add_row(table, *row)
    missing = absent_ranks(snapshot)
    if missing:
        name = ranks_text(missing).partition(" ")[2]
        add_row(table, name, "", "MISSING", "", "no such process on this host", style="bold red")
    return Group(section("state of each process", "seen"), table)


def _groups(motions: Mapping[int, Motion]) -> list[StackClass]:
    """Return ranks with equal state and stack as one group, in the order of ranks."""
    found = []
    for condition in _STATES:
        found += classify(s for s in motions.values() if s.condition == condition)
    return sorted(found, key=lambda group: group.ranks)


def _replaced(motion: Motion) -> str:
    """Return which program a process runs instead of the one that wrote its ring, if it does."""
    worker = motion.worker
    if worker.rank_source != "ring" or worker.rings or motion.condition == "ended":
        return ""
    name = worker.title.partition(" ")[0].rpartition("/")[2]
    return f"runs another program now{f': {name}' if name else ''}"


def where_text(motion: Motion) -> str:
    """Return where a process is, or why its stack could not be read."""
    if motion.frames:
        return motion.text
    return next((one.error for one in motion.worker.stacks if one.error), motion.text)


def _tree(motions: Mapping[int, Motion]) -> Iterable[RenderableType]:
    roots = build_tree({rank: one for rank, one in motions.items() if one.frames})
    if not roots:
        return
    yield section("stacks of all ranks, merged", "seen; = the same twice, ~ changed")
    grid = Table.grid(unwrapped(), unwrapped(), wrapped(), padding=(0, 1))
    for root in roots:
        _walk(root, 0, grid)
    yield grid


def stretch_of(node: TreeNode) -> list[TreeNode]:
    """Return a node and those below it up to the first branch."""
    stretch = [node]
    while len(stretch[-1].children) == 1 and stretch[-1].children[0].ranks == node.ranks:
        stretch.append(stretch[-1].children[0])
    return stretch


def _walk(node: TreeNode, indent: int, grid: Table) -> None:
    """Add the rows of a node: ranks, mark and frame.

    A stretch without branches is shown by its last frames. The indentation grows only where the
    stacks of ranks branch.
    """
    stretch = stretch_of(node)
    shown = stretch if len(stretch) <= _TRUNK + 1 else stretch[-_TRUNK:]
    ranks = ranks_text(node.ranks).partition(" ")[2]
    mark = "=" if len(node.still) == len(node.ranks) else "~" if not node.still else "*"
    texts = []
    if hidden := len(stretch) - len(shown):
        texts.append(f"... {plural(hidden, 'frame')}")
    for one in shown:
        frame = one.frame
        counters = " ".join(f"{name}={value}" for name, value in frame.counters.items())
        alone = f"  {counters}" if counters and len(one.ranks) == 1 else ""
        texts.append(f"{frame.name}  {frame.base}:{frame.line}{alone}")
    for text in texts:
        line = Text(f"{'  ' * indent}{text}", overflow="fold")
        grid.add_row(Text(f" {ranks}"), Text(mark), line)
        ranks = mark = ""
    for child in stretch[-1].children:
        _walk(child, indent + 1, grid)


def _native(motions: Mapping[int, Motion]) -> Iterable[RenderableType]:
    """Yield the C frames of one rank per group, with threads of communication libraries."""
    table = plain_table(right("rank"), unwrapped("thread"), wrapped("frames"), headings=False)
    for group in classify(motion for motion in motions.values() if motion.frames):
        rows = 0
        threads = group.motion.worker.stacks[-1].threads
        for thread in sorted(threads, key=lambda one: one.name != group.motion.thread):
            if not thread.native:
                continue
            named = [frame for frame in thread.native if not frame.startswith("???")]
            if thread.name == group.motion.thread or _LIBRARIES.search(" ".join(named)):
                frames = " < ".join(reversed(named[-_INNERMOST:]))
                who = "" if rows else str(group.ranks[0])
                add_row(table, who, thread.name, frames or "no name")
                rows += 1
    if table.row_count:
        yield section("c frames of one rank per stack", "seen; innermost first")
        yield table


def _data_sources(verdict: Verdict) -> Iterable[RenderableType]:
    there = plain_table(unwrapped("name"), unwrapped("verdict"), wrapped("reports"), headings=False)
    absent = plain_table(unwrapped("name"), wrapped("reason"), headings=False)
    for one in verdict.evidence:
        table, agreement = (there, [_AGREEMENT[one.agrees]]) if one.available else (absent, [])
        style = "red" if one.available and one.agrees is False else ""
        add_row(table, one.name, *agreement, one.says, style=style)
        if one.enable:
            add_row(table, "", *("" for _ in agreement), f"-> {one.enable}", style="dim")
    yield from (section("data sources"), there)
    if absent.row_count:
        yield from (section("not available"), absent)
