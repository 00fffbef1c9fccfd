"""The surfaces, by name."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.inputs import Surface
from tests.fuzz.surfaces.archives import Archives
from tests.fuzz.surfaces.baselines import Baselines
from tests.fuzz.surfaces.live import GuardedRings, WatchedRings
from tests.fuzz.surfaces.nodes import NodeAnswers, NodeReports
from tests.fuzz.surfaces.probes import RasAnswers, StackDumps
from tests.fuzz.surfaces.runs import bundles, dumps, rings, traces, transfers

__all__ = ["make_surfaces"]


def make_surfaces(home: Path) -> dict[str, Surface]:
    """Return all surfaces.

    Args:
        home: A directory for what has to be a file, in memory if possible.
    """
    made: list[Surface] = [
        *(rings(home), dumps(home), traces(home), transfers(home), bundles(home)),
        *(Archives(home), RasAnswers(), StackDumps(), Baselines(home)),
        *(WatchedRings(home), GuardedRings(home), NodeAnswers(home), NodeReports(home)),
    ]
    return {surface.name: surface for surface in made}
