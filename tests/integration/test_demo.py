"""`ncclscope demo`: for every fault the verdict names what was planted, and nothing is left.

The screen is that of README.md, which tests/integration/test_documents.py holds it against.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from ncclscope import diagnose, open_run
from ncclscope.lab.faults import FAULTS
from ncclscope.remote.fleet import Fleet
from ncclscope.remote.run import open_remote_run
from tests.integration.test_command_line import NCCLSCOPE
from tests.support.remote_nodes import LocalClient

pytestmark = pytest.mark.timeout(180)

LABORATORY = "ncclscope.launch.fork_server"


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NCCLSCOPE, "demo", *arguments], capture_output=True, text=True, check=False
    )


def _leftovers() -> set[str]:
    """Return what a demonstration may leave: shared memory, processes without a parent."""
    found = {name for name in os.listdir("/dev/shm") if name.startswith("ncclscope-demo-")}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.ppid() == 1 and any(LABORATORY in word for word in process.cmdline()):
                found.add(f"pid {process.pid}")
    return found


def _assert_nothing_stays(before: set[str]) -> None:
    """Check what was not there before. That of a demonstration beside this one goes by itself."""
    left, deadline = _leftovers() - before, time.monotonic() + 100
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= _leftovers()
    assert not left


FAST = ("skipped_call",)
"""On four ranks; README.md has eight. Others' runs are judged in test_lab_faults.py."""


@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        pytest.param(name, seed, marks=() if name in FAST else pytest.mark.slow)
        for seed, name in enumerate(FAULTS)
    ],
)
def test_the_verdict_names_what_was_planted(fault: str, seed: int, rings: Path) -> None:
    before = _leftovers()

    # Without a directory it cleans up its own.
    kept = [] if fault in ("skipped_call", "none") else ["--dir", str(rings / "job")]
    size = ("--tp", "2") if fault in FAST else ()
    done = _demo("--fault", fault, "--seed", str(seed), *size, *kept, "--json")

    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    assert document["agrees"], (document["verdict"], document["planted"])
    assert done.returncode == 0
    assert document["planted"]["fault"] == fault
    _assert_nothing_stays(before)
    if kept:
        assert_nodes_say_the_same(rings / "job")


def assert_nodes_say_the_same(directory: Path) -> None:
    """Nodes that examine their own rings give the verdict of one machine with all rings."""
    places = {}
    for number, ring in enumerate(sorted(directory.rglob("*.ring"))):
        place = places[f"node-{number % 3}"] = directory / f"node-{number % 3}"
        place.mkdir(exist_ok=True)
        ring.rename(place / ring.name)
    local = diagnose(open_run(directory)).to_dict()
    remote = diagnose(open_remote_run(Fleet(LocalClient(places)), [str(directory)])).to_dict()
    assert json.dumps(remote) == json.dumps(local)
