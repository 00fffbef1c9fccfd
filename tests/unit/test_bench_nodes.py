"""Benchmarks of jobs on many nodes measure a diagnosis that finds the planted fault."""

from __future__ import annotations

from pathlib import Path

from benchmarks.runners import nodes
from benchmarks.runners.rings import DIVERGING


def test_nodes_and_those_that_say_the_same(rings: Path) -> None:
    place = rings / "job"
    nodes.make_nodes(place, 16)
    own = nodes.measure(place)
    more = nodes.measure(place, 160)
    assert own.named == more.named == (DIVERGING,)
    assert 100 < own.summaries / 16 < 1000
    # A larger job has more to say of itself, and is asked no more.
    assert 8 < more.summaries / own.summaries < 12
    assert more.total - more.summaries < 2 * (own.total - own.summaries)
    assert more.rounds == own.rounds
