"""Write the Flight Recorder dumps of a world that was carried out.

A dump shows less than a ring. Who has ended, or is stopped, writes none; nothing shows how a
process ended, nor what it does outside of calls.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.corpus.workload import History, Post, Posted, Workload
from tests.corpus.writers import DUMPS, write_dumps
from tests.worlds.executor import Outcome
from tests.worlds.world import Act, World

__all__ = ["DUMPS", "as_dumped", "labelled", "write"]


def as_dumped(world: World, outcome: Outcome) -> World:
    """Return a world with those ranks as missing that write no dump.

    Args:
        world: The world.
        outcome: How far it came.
    """
    left = {rank for rank, how in outcome.ended.items() if how != "exit" or outcome.stuck()}
    stopped = {rank for rank, how in outcome.held.items() if how == "stop"}
    lost = {*world.loss.missing}
    missing = lost | left | stopped
    if len(missing.union(world.absent)) == world.size:
        missing = lost  # all wrote one as they ended
    dumped = copy.copy(world)
    dumped.loss = replace(world.loss, missing=tuple(sorted(missing)))
    return dumped


def write(world: World, outcome: Outcome, directory: Path, kind: str) -> None:
    """Write a dump for each rank that can write one.

    Args:
        world: The world, as :func:`as_dumped` returns it.
        outcome: How far it came.
        directory: An empty folder.
        kind: One of :data:`DUMPS`.
    """
    no_dump = (*world.absent, *world.loss.missing)
    workload = Workload(
        size=world.size,
        groups=world.comms,
        backend=world.backend,
        keep=world.loss.keeps or None,
        no_dump=no_dump,
        timing=_draw(world, "timing"),
        timed_out=outcome.final and _draw(world, "timed out"),
    )
    posted = [[_posted(workload, rank, each) for each in calls] for rank, calls in _calls(outcome)]
    for calls in posted:
        first = next((each for each in calls if not each.done), None)
        if first is not None:
            first.running = True
    write_dumps(workload, History(posted, list(outcome.last_seen_ns), {}), directory, kind)


def _draw(world: World, what: str) -> bool:
    """Return whether half of all dumps have something, of which this world's are."""
    return random.Random(f"{world.seed}/{what}").random() < 0.5


def labelled(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a verdict's document with the world's own label: torch has another one for it.

    Args:
        document: As ``--json`` prints it.
    """
    labelled = copy.deepcopy(dict(document))
    for finding in labelled["findings"]:
        if finding["comm"] and finding["comm"]["label"] == "default_pg":
            finding["comm"]["label"] = "world"
    return labelled


def _calls(outcome: Outcome) -> list[tuple[int, list[Any]]]:
    return list(enumerate(outcome.posted))


def _posted(workload: Workload, rank: int, each: Any) -> Posted:
    act: Act = each.act
    more: dict[str, Any] = {"site": act.site, "thread": act.thread}
    for name in ("redop", "root", "peer"):
        if (value := getattr(act, name)) is not None:
            more[name] = value
    size = len(workload.groups[act.comm])
    if act.op == "all_to_all":
        more |= {"sizes": _even(act.shape[0], size), "out_sizes": _even(act.shape[0], size)}
    post = Post(act.op, act.comm, act.shape, act.dtype, more, act.batch, waits=act.waits)
    return Posted(post, each.time_ns, each.number, done=bool(each.done_ns))


def _even(rows: int, size: int) -> list[int]:
    return [rows // size] * size
