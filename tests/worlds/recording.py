"""Write the rings of a world that was carried out, on its own clock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from ncclscope.model.activities import CPU
from ncclscope.ring import layout
from ncclscope.ring import writer as ring_writer
from ncclscope.tracing import identity, scope
from ncclscope.tracing.tracer import Comm, Tracer
from tests.worlds.executor import BEGAN_NS, Outcome, Posted
from tests.worlds.world import Act, World

__all__ = ["small_rings", "write"]

_BUSY, _BLOCKED = 0.9, 0.004
"""Share of a core that a process uses, as measured where ranks compute, and where they wait."""
_ERRORS = {
    "raise": "RuntimeError: loss is not finite",
    "lost": "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.9]:4242",
}
_ABOUT = {
    "boot_id": "",
    "parent": 1,
    "ancestors": [],
    "pid_namespace": 1,
    "started_ns": BEGAN_NS,
    "argv": ["python", "train.py"],
    "python": "3.12.0",
    "versions": {"torch": "2.13.0"},
    "run": "",
}


@contextlib.contextmanager
def small_rings(keeps: int) -> Iterator[None]:
    """Let rings be smaller than users may make them, so that short programs wrap them."""
    with patch.object(layout, "MIN_CAPACITY", keeps or layout.MIN_CAPACITY):
        yield


class _Clock:
    now = BEGAN_NS
    number = 0

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Write rings with this clock, by the writer in Python: the one in C has its own."""
        with (
            patch.dict(os.environ, NCCLSCOPE_NATIVE="0"),
            patch.object(ring_writer, "now_ns", lambda: self.now),
            patch.object(ring_writer, "own", self),
            patch.object(identity, "describe_process", lambda: dict(_ABOUT)),
        ):
            yield


def write(world: World, outcome: Outcome, directory: Path) -> None:
    """Write a ring for each rank that is recorded.

    Args:
        world: The world.
        outcome: How far it came.
        directory: An empty folder.
    """
    clock = _Clock()
    with clock.installed(), small_rings(world.loss.keeps):
        for rank in range(world.size):
            if rank not in world.absent and rank not in world.loss.missing:
                clock.now = BEGAN_NS
                _write_ring(world, outcome, directory, rank, clock)


def _write_ring(world: World, outcome: Outcome, directory: Path, rank: int, clock: _Clock) -> None:
    tracer = Tracer(
        directory,
        rank=rank,
        world_size=world.size,
        capacity=world.loss.keeps or layout.MIN_CAPACITY,
        heartbeat=False,
        # As processes of other hosts, whose pids nobody checks here.
        details={"host": f"node-{rank}", "pid": 1000 + rank, "start_ticks": 100 + rank, "gpu": 0},
    )
    comms = {
        label: tracer.communicator(f"{label}/{members}", label, members, world.backend)
        for label, members in world.comms.items()
        if rank in members
    }
    events: list[tuple[int, int, Posted]] = []
    for number, posted in enumerate(outcome.posted[rank]):
        events.append((posted.time_ns, number, posted))
        if posted.done_ns and _shows_completion(world, posted.act):
            events.append((posted.done_ns, number, posted))
    places: dict[Posted, int] = {}
    batch = 0
    for clock.now, _, posted in sorted(events, key=lambda each: each[:2]):
        act = posted.act
        if posted in places:
            tracer.complete(places[posted])
            continue
        if world.backend == "nccl" and act.batch != batch:
            if batch:
                scope.leave_group()
            if act.batch:
                scope.enter_group()
            batch = act.batch
        clock.number = act.thread + 1
        places[posted] = _record(tracer, comms[act.comm], act)
    if batch:
        scope.leave_group()
    since = max((time_ns for time_ns, _, _ in events), default=BEGAN_NS)
    clock.now = outcome.last_seen_ns[rank]
    share = _BUSY if outcome.held.get(rank) == "busy" else _BLOCKED
    work = int(share * max(0, clock.now - since)) // 1000
    tracer.activity(CPU).begin(number=work, since=since)
    tracer.ring.store_heartbeat()
    how = outcome.ended.get(rank)
    if how in _ERRORS:
        tracer.describe(ended_with=_ERRORS[how])
    if how not in (None, "kill"):
        tracer.close()
    tracer.detach()


def _shows_completion(world: World, act: Act) -> bool:
    """Return whether a ring says that a call has completed: NCCL's return when enqueued."""
    return world.backend == "gloo" or act.waits


def _record(tracer: Tracer, comm: Comm, act: Act) -> int:
    out = None
    if act.op == "all_gather":
        out = (act.shape[0] * len(comm.ranks), *act.shape[1:])
    elif act.op == "reduce_scatter":
        out = (act.shape[0] // len(comm.ranks), *act.shape[1:])
    return tracer.record(
        comm,
        act.op,
        shape=act.shape or None,
        dtype=act.dtype if act.shape else None,
        redop=act.redop,
        root=act.root,
        peer=act.peer,
        out_shape=out,
        site=act.site,
    )
