"""A world with its faults, its loss and its moment of observation, drawn from a seed."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ncclscope import diagnose, open_run
from ncclscope.engine.registry import load_analyzers
from ncclscope.model import Run
from tests.damage.recording import MEMORY
from tests.worlds import dumps
from tests.worlds.executor import Outcome, play
from tests.worlds.faults import FAULTS, Planted, plant
from tests.worlds.generator import draw
from tests.worlds.recording import small_rings, write
from tests.worlds.truth import Truth, truth_of
from tests.worlds.world import Loss, World

__all__ = ["HEALTHY", "RECORDS", "RINGS", "Sample", "examined", "sample", "verdict_on"]

What = TypeVar("What")

HEALTHY = "healthy"
RINGS = "rings"
RECORDS = (RINGS, *dumps.DUMPS)
SHARE_HEALTHY = SHARE_LOSSY = 1 / 3
_TRIES = 50
# Looking for them anew takes a third of the time of a diagnosis.
_ANALYZERS = load_analyzers()


@dataclass
class Sample:
    """A world and what is known of it.

    Attributes:
        world: The world.
        planted: Its faults.
        outcome: How far it came.
        truth: What may be said of it.
    """

    world: World
    planted: tuple[Planted, ...]
    outcome: Outcome
    truth: Truth

    @property
    def name(self) -> str:
        """Its row in the table."""
        if len(self.planted) > 1:
            return f"{len(self.planted)} faults"
        return self.planted[0].fault if self.planted else HEALTHY


def sample(
    seed: int, number: int, fault: str = "", *, whole: bool = False, records: str = RINGS
) -> Sample:
    """Return the world of a number, the same everywhere.

    Args:
        seed: Of all worlds.
        number: Of this one.
        fault: The only fault that it has, or ``healthy``; drawn where empty.
        whole: Whether all is recorded, and observed at the end.
        records: What it is recorded in, one of :data:`RECORDS`.
    """
    rng = random.Random(f"{seed}/{number}/{fault}")
    healthy = draw(rng)
    healthy.seed = f"{seed}/{number}"
    names = _names(rng, fault)
    world = copy.copy(healthy)
    world.programs = [list(program) for program in healthy.programs]
    planted = _plant(world, rng, names)
    if rng.random() < (0.15 if planted else 0.4):
        world.running = rng.random()
    if rng.random() < 0.3:
        # A job that is over ends all its processes; one that hangs keeps them all.
        world.lingers = any(each.fault != "busy" for each in planted)
    world.severed = world.backend == "gloo" and rng.random() < 0.6
    if records != RINGS:
        world.severed = False  # who fails writes no dump
    if rng.random() < SHARE_LOSSY:
        world.loss = _loss(rng, world)
    if whole:
        world.running, world.loss = None, Loss()
    outcome = play(world)
    if records != RINGS:
        world = dumps.as_dumped(world, outcome)
    return Sample(world, planted, outcome, truth_of(world, healthy, planted, outcome))


def _names(rng: random.Random, fault: str) -> list[str]:
    if fault:
        return [] if fault == HEALTHY else [fault]
    if rng.random() < SHARE_HEALTHY:
        return []
    return rng.choices(list(FAULTS), k=rng.choices((1, 2, 3), (8, 1, 1))[0])


def _plant(world: World, rng: random.Random, names: list[str]) -> tuple[Planted, ...]:
    """Plant faults in different ranks; another one where there is no place for it."""
    planted: list[Planted] = []
    for name in names:
        free = [rank for rank in range(world.size) if rank not in {p.rank for p in planted}]
        for attempt in range(_TRIES):
            if not free:
                break
            fault = name if attempt < _TRIES // 2 else "skipped_call"
            found = plant(world, rng, fault, rng.choice(free))
            if found is not None:
                planted.append(found)
                break
    return tuple(planted)


def _loss(rng: random.Random, world: World) -> Loss:
    kind = rng.choice(("missing", "wrapped", "killed"))
    if kind == "missing":
        rank = rng.randrange(world.size)
        # Something is recorded, or there is nothing to diagnose.
        return Loss(missing=(rank,) if {*range(world.size)} - {rank, *world.absent} else ())
    if kind == "wrapped":
        return Loss(keeps=rng.choice((8, 16, 32)))
    return Loss(killed_after=float(rng.choice((15, 60, 300))))


def verdict_on(world: World, outcome: Outcome, records: str = RINGS) -> Mapping[str, Any]:
    """Return the document that ``ncclscope diagnose --json`` prints of a world's records.

    Args:
        world: The world.
        outcome: How far it came.
        records: What it is recorded in, one of :data:`RECORDS`.
    """
    return examined(world, outcome, lambda _run, document: document, records)


def examined(
    world: World,
    outcome: Outcome,
    examine: Callable[[Run, Mapping[str, Any]], What],
    records: str = RINGS,
) -> What:
    """Diagnose a world's records, and return what a function says of them and of the verdict."""
    with tempfile.TemporaryDirectory(prefix="ncclscope-worlds-", dir=MEMORY) as name:
        if records != RINGS:
            dumps.write(world, outcome, Path(name), records)
            run = open_run(name)
            document = diagnose(run, analyzers=_ANALYZERS).to_dict()
            return examine(run, dumps.labelled(document))
        write(world, outcome, Path(name))
        with small_rings(world.loss.keeps):
            run = open_run(name)
            return examine(run, diagnose(run, analyzers=_ANALYZERS).to_dict())
