"""torchrun starts all workers anew: rings of two generations lie in one directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.torchrun import ALARMS, run_watched, start_watched

pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(300)

PROGRAM = "elastic_restart"


def pids(document: dict[str, Any]) -> frozenset[int]:
    return frozenset(row["pid"] for row in document["table"])


@pytest.mark.slow
def test_a_restart_that_ends_well_is_ok(rings: Path, tmp_path: Path) -> None:
    seen = run_watched(rings, tmp_path, PROGRAM, restarts=1)

    assert seen.status == 0, seen.output
    assert len(list(rings.glob("*.ring"))) == 9  # and torchrun's own
    restarted = [note for note in seen.verdict["notes"] if "started the ranks again" in note]
    assert len(restarted) == 1
    assert seen.verdict["status"] == "ok", seen.verdict
    assert seen.verdict["ranks"] == {"expected": 4, "read": 4, "missing": []}
    last = pids(seen.verdict)
    # The worker that failed is reported while its generation is the last, and no longer.
    for document in seen.watched:
        if document["status"] in ALARMS:
            assert not pids(document) & last, document
            assert document["verdict"]["kind"] == "dead_rank"
            # For a moment its peers may have been ended, too, and nobody be singled out.
            named = document["verdict"]
            assert named["diverging_ranks"] == [1] or (
                named["diverging_ranks"] == [] and 1 in named["candidate_ranks"]
            )
    assert seen.watched[-1]["status"] == "ok"
    assert pids(seen.watched[-1]) == last


@pytest.mark.slow
def test_a_hang_after_a_restart_is_reported_for_the_last_generation(
    rings: Path, tmp_path: Path
) -> None:
    with start_watched(rings, tmp_path, PROGRAM, "stuck", restarts=1) as running:
        first: frozenset[int] = frozenset()
        deadline = time.monotonic() + 200
        while not (hangs := [d for d in running.watched() if is_missing(d, 2)]):
            assert running.program.poll() is None, running.log.read_text()
            assert time.monotonic() < deadline, running.watched()
            first = first or next((pids(d) for d in running.watched() if d["table"]), first)
            time.sleep(0.1)
        running.program.terminate()
        seen = running.finish(timeout=60)

    assert not pids(hangs[0]) & first
    assert pids(seen.verdict) == pids(hangs[0])
    # How the launcher ended them is not why they hung.
    for document in (hangs[0], seen.verdict):
        assert document["status"] == "hung"
        verdict = document["verdict"]
        assert (verdict["kind"], verdict["diverging_ranks"]) == ("not_joined", [2])
        assert verdict["peers"]["op"] == "broadcast"


def is_missing(document: dict[str, Any], rank: int) -> bool:
    """Return whether a document of ``watch`` is the alarm that a rank has not come."""
    return (
        document["status"] == "hung"
        and document["verdict"]["kind"] == "not_joined"
        and document["verdict"]["diverging_ranks"] == [rank]
    )
