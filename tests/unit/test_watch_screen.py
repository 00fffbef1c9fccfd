"""The table of a watched job, as a terminal of a given size shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.render.console.terminal import plain_text
from ncclscope.render.console.watch import one_line, render_poll
from ncclscope.watch.poll import Poll
from ncclscope.watch.watch import Watcher
from tests.support.rings import tracer_in

RANKS = 24


def polled(directory: Path, *, odd: int | None = None, late: int | None = None) -> Poll:
    for rank in range(RANKS):
        tracer = tracer_in(directory, rank=rank, world_size=RANKS)
        comm = tracer.communicator("k", "tp:0", range(RANKS), "gloo")
        for number in range(5):
            if rank == late and number > 2:
                continue
            shape = (7 if rank == odd and number == 1 else 4, 2)
            position = tracer.record(comm, "all_reduce", shape=shape, dtype="int8", site="f.py:1 f")
            if number < 4:
                tracer.complete(position)
    return Watcher(directory).poll()


def test_before_anything_is_there(tmp_path: Path) -> None:
    poll = Watcher(tmp_path).poll()

    assert plain_text(render_poll(poll, 80, source="DIR")).split() == (
        ["WAITING", "for", "a", "ring", "to", "appear", "DIR"]
    )


def test_a_job_in_order(rings: Path) -> None:
    poll = polled(rings)

    screen = plain_text(render_poll(poll, 100, source="DIR"), 100)

    assert screen.startswith("OK 24 of 24 ranks, running  DIR")
    assert screen.count("all_reduce [4,2] pending") == RANKS
    assert "ncclscope diagnose" not in screen
    assert one_line(poll) == "ok: 24 ranks, running"


def test_a_rank_that_is_behind(rings: Path) -> None:
    screen = plain_text(render_poll(polled(rings, late=9), 100), 100)

    (row,) = [line.split() for line in screen.splitlines() if line.split()[:1] == ["9"]]
    assert row[2:6] == ["3", "−2", "all_reduce", "[4,2]"]


@pytest.mark.parametrize("width", [80, 160])
def test_a_low_terminal_shows_who_matters(rings: Path, width: int) -> None:
    poll = polled(rings, odd=17, late=20)

    screen = plain_text(render_poll(poll, width, height=20, source="DIR"), width)

    lines = screen.splitlines()
    assert len(lines) <= 20
    shown = [line.split()[0] for line in lines if line.split()[0].isdecimal()]
    assert {"17", "20"} <= set(shown)
    assert f"and {RANKS - len(shown)} ranks more" in screen
    assert "ncclscope diagnose DIR" in screen
    assert one_line(poll).startswith("diverged: Rank 17 ")
