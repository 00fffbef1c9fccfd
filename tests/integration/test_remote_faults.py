"""Rings of real processes that hang: nodes that examine their own say what one machine says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.remote.fleet import Fleet
from ncclscope.remote.run import open_remote_run
from tests.nodes import ncclscope
from tests.remote_nodes import HereAsker

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    "fault",
    ["divergent_dispatch", "wrong_peer", "order_swap", "frozen_rank", "zero_token_skip"],
)
def test_the_same_verdict(fault: str, rings: Path) -> None:
    directory = rings / "job"
    done = ncclscope("demo", "--fault", fault, "--dir", directory, "--json")
    assert done.returncode == 0, done.stderr
    places = {}
    for number, ring in enumerate(sorted(directory.rglob("*.ring"))):
        place = places[f"node-{number % 3}"] = directory / f"node-{number % 3}"
        place.mkdir(exist_ok=True)
        ring.rename(place / ring.name)
    local = diagnose(open_run(directory)).to_dict()
    remote = diagnose(open_remote_run(Fleet(HereAsker(places)), [str(directory)])).to_dict()
    assert json.dumps(remote) == json.dumps(local)
    assert remote["verdict"] is not None
