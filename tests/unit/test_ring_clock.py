"""The clock of a host is set while processes record: durations stay what they were."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ncclscope.ring import layout
from ncclscope.ring import writer as ring_writer
from ncclscope.ring.reader import RingFile
from tests.support.rings import fill, tracer_in

HOUR_NS = 3_600_000_000_000
SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(
    "set_by",
    [HOUR_NS, -HOUR_NS, SECOND_NS // 5, -SECOND_NS // 5],
    ids=["set forwards", "set backwards", "slewed forwards", "slewed backwards"],
)
def test_times_are_those_of_the_clock_today(
    rings: Path, monkeypatch: pytest.MonkeyPatch, set_by: int
) -> None:
    """The process began before the host's clock was set by an hour, or slewed by 0.2 s."""
    monkeypatch.setenv("NCCLSCOPE_NATIVE", "0")
    before = ring_writer.CLOCK - set_by
    monkeypatch.setattr(ring_writer, "CLOCK", before)
    monkeypatch.setattr(ring_writer, "now_ns", lambda: time.monotonic_ns() + before)
    began = time.time_ns()
    tracer = tracer_in(rings)
    fill(tracer, tracer.communicator("k"), 1, 4)
    ended = time.time_ns()

    with RingFile(Path(tracer.path)) as ring:
        times = ring.window(0, 3)["time"].astype(int).tolist()
        assert all(began <= one <= ended for one in times)
        assert began <= ring.heartbeat_ns <= ended


def test_times_of_another_host_stay_as_they_are(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLSCOPE_NATIVE", "0")
    before = ring_writer.CLOCK - HOUR_NS
    monkeypatch.setattr(ring_writer, "CLOCK", before)
    monkeypatch.setattr(ring_writer, "now_ns", lambda: time.monotonic_ns() + before)
    tracer = tracer_in(rings, details={"boot_id": "another"})
    fill(tracer, tracer.communicator("k"), 1, 2)

    with RingFile(Path(tracer.path)) as ring:
        assert ring.shift_ns == 0
        assert abs(ring.heartbeat_ns + HOUR_NS - time.time_ns()) < 60 * SECOND_NS
        assert ring.read_u64(layout.HEADER_HEARTBEAT) == ring.heartbeat_ns
