"""What the live view shows of polls: entries, events, last calls, the end of a job."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.render.tui.board import Board
from ncclscope.render.tui.entries import comm_entries, rank_entries
from ncclscope.render.tui.events import Events
from ncclscope.render.tui.picture import Picture
from ncclscope.render.tui.recent import RecentCalls
from tests.unit.test_watch import STALL, Job


@pytest.fixture
def job(rings: Path) -> Job:
    return Job(rings, 3)


def texts(events: Events) -> list[str]:
    return [event.text for event in events.all]


def test_a_stall_and_its_end_are_events(job: Job) -> None:
    events = Events(wall=lambda: 0.0)
    job.start()
    job.post()
    events.note(job.poll())
    position = {
        rank: job.tracers[rank].record(
            job.tracers[rank].communicator("tp:0/(0, 1, 2)", "tp:0", range(3), "gloo"),
            "barrier",
        )
        for rank in (0, 2)
    }
    events.note(job.poll())
    events.note(job.poll(STALL + 1))
    assert texts(events)[:2] == [
        "ranks 0-2 appeared",
        "ranks 0 2 stalled: inside a collective for 11 s",
    ]
    assert texts(events)[2].startswith("hung: Rank 1 ")

    job.post(1, op="barrier", shape=None, dtype=None, redop=None, site=None)
    for rank, done in position.items():
        job.tracers[rank].complete(done)
    events.note(job.poll(5.0))

    assert texts(events)[3:] == [
        "ranks 0 2 resumed after 16 s",
        "the trouble is over: ok: 3 ranks, running",
    ]


def test_ends_are_events_and_nothing_is_reported_twice(job: Job) -> None:
    events = Events(wall=lambda: 0.0)
    job.start()
    job.post()
    for _ in range(3):
        events.note(job.poll())
    job.tracers[1].close()
    events.note(job.poll(2.0))
    job.tracers[0].close()
    job.tracers[2].close()
    for _ in range(3):
        events.note(job.poll(2.0))

    assert [text for text in texts(events) if "ended" in text or "exited" in text] == [
        f"rank 1 exited normally, pid {os.getpid()}",
        "ranks 0 2 exited normally",
        "all processes have ended",
    ]


def test_what_was_over_before_is_reported_so(job: Job) -> None:
    job.start()
    job.post()
    for tracer in job.tracers.values():
        tracer.close()
    events = Events(wall=lambda: 0.0)
    events.note(job.poll())

    assert texts(events) == ["ranks 0-2 had ended before this watch began"]


def test_marks_name_ranks_that_lag_or_stall(job: Job) -> None:
    job.start()
    job.post()
    job.post(0, 2, done=False)
    poll = job.poll()
    assert [one.mark for one in rank_entries(poll)] == ["", "", ""]

    poll = job.poll(2.0)
    assert [(one.mark, one.lag) for one in rank_entries(poll)] == [("", 0), ("<", 1), ("", 0)]
    (comm,) = comm_entries(poll, time.time() + 2.0)
    assert (comm.mark, comm.lags, comm.pending, comm.calls) == ("<", {1: 1}, (0, 2), 2)

    poll = job.poll(STALL)
    assert [one.mark for one in rank_entries(poll)] == ["*", "!", "*"]
    assert [one.is_pending for one in rank_entries(poll)] == [True, False, True]
    assert comm_entries(poll, 0.0)[0].mark == "!"


def test_a_rank_is_shown_where_it_is_behind(job: Job) -> None:
    job.start()
    job.post()
    job.post(comm="world")
    job.post(0, 2)
    job.post(0, 2, comm="world")
    job.post(0, 2, comm="world")
    job.post(1)

    poll = job.poll(2.0)

    entry = rank_entries(poll)[1]
    assert entry.cursor.comm_cursors[entry.key].comm.label == "world"
    assert entry.lag == 2


def test_last_calls_are_those_that_were_recorded(job: Job) -> None:
    job.start()
    for number in range(300):
        job.post(comm="tp:0" if number % 100 else "world", shape=(number, 2))
    poll = job.poll()
    recorded = open_run(job.directory).by_rank[1]
    cursor = poll.ranks[1]

    for key, log in recorded.logs.items():
        assert [call.seq for call in cursor.newest(10, key)] == [
            call.seq for call in log.span(max(1, log.calls - 9), log.calls + 1)
        ]
    newest = cursor.newest(40)
    assert [call.shape for call in newest] == [(number, 2) for number in range(260, 300)]
    assert len(cursor.newest(10_000)) == 300
    assert cursor.newest(5, "no such communicator") == []


def test_rings_are_read_when_they_are_shown_and_something_is_new(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start()
    job.post()
    picture = Picture("DIR", Events())
    cursor = job.poll().ranks[0]
    read = []
    newest = type(cursor).newest
    monkeypatch.setattr(
        type(cursor), "newest", lambda self, *given: read.append(given) or newest(self, *given)
    )

    def draw(seconds: float) -> str:
        lines = picture.lines(job.poll(seconds), 80, 24, 0.0)
        return "\n".join("".join(text for text, _ in line) for line in lines)

    for _ in range(3):
        assert "#1 " in draw(0.1)
    assert len(read) == 1, "nothing is new"
    job.post()
    assert "#2 " not in draw(0.1)
    assert "#2 " in draw(1.0)
    assert len(read) == 2, "once a second at most"
    picture.press("l")
    job.post()
    draw(5.0)
    assert len(read) == 2, "nobody shows them"
    assert RecentCalls().of(cursor, 3, None, 0.0)[-1].seq == 3


def test_every_picture_fits_the_terminal(job: Job) -> None:
    job.start()
    for number in range(30):
        job.post(comm=f"a name that is rather long {number % 7}")
    job.post(odd := 1, shape=(9, 9))
    job.post(0, 2)
    poll = job.poll()
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    assert odd in poll.verdict.cause.diverging_ranks
    for has_keys in (True, False):
        picture = Picture("/a/directory/with/a/long/name", Events(), has_keys=has_keys)
        for width, height in ((80, 24), (200, 50), (20, 4), (40, 10), (132, 43), (500, 200)):
            for key in ("enter", "d", "l", "?", "tab", "f", "f", "s", "b", "space", "n"):
                picture.press(key)
                assert len(picture.lines(poll, width, height, 0.0)) == height


def test_a_choice_stays_where_the_order_changes() -> None:
    board = Board()
    names, numbers = ["a", "b", "c"], ["0", "1", "12"]

    def press(*keys: str, order: list[str] = names, marked: tuple[bool, ...] = (False,) * 3) -> str:
        for key in keys:
            board.press(key, order, numbers, marked, (2, 5))
        return order[board.place(order)]

    assert press("j") == "b"
    assert press(order=["c", "b", "a"]) == "b"
    assert press("1", "2") == "c"
    assert press("G", "k") == "b"
    assert press("n", marked=(True, False, False)) == "a"
    assert press("7") == "a", "there is no such rank"
    assert board.place(["x"]) == 0


def test_how_long_a_job_has_been_over(job: Job) -> None:
    assert job.poll().over_for is None
    job.start()
    job.post()
    assert job.poll(1.0).over_for is None
    for tracer in job.tracers.values():
        tracer.close()

    assert job.poll(2.0).over_for == 0
    assert job.poll(3.0).over_for == pytest.approx(3.0)

    job.tracers.clear()
    job.start()
    assert job.poll(2.0).over_for is None
