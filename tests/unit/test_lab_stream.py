from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ncclscope
from ncclscope.lab.progress import ProgressBoard
from ncclscope.lab.stream import HostStream
from ncclscope.model import State
from ncclscope.tracing import scope


class Bench:
    """A stream, its ring and its numbers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "rings"
        self.board = ProgressBoard.create(directory / "board", 1)
        self.tracer = ncclscope.Tracer(self.directory, rank=0, world_size=1, heartbeat=False)
        self.comm = self.tracer.communicator("KEY", "tp:0", [0], "gloo")
        self.stream = HostStream(self.tracer, self.board.entry(0))

    def record(self) -> int:
        return self.tracer.record(self.comm, "barrier")

    def states(self) -> list[State]:
        (rank,) = ncclscope.open_run(self.directory).ranks
        log = rank.logs["KEY"]
        return [call.state for call in log.span(1, log.calls + 1)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.tracer.close()


def test_work_runs_in_the_order_of_posting(bench: Bench) -> None:
    done: list[int] = []
    for number in range(200):
        bench.stream.launch(done.append, number)
    bench.stream.synchronize()
    assert done == list(range(200))


def test_the_host_does_not_wait_for_what_it_posts(bench: Bench) -> None:
    gate = threading.Event()
    entered = threading.Event()

    def blocked() -> None:
        entered.set()
        gate.wait()

    bench.stream.launch(blocked, position=bench.record())
    bench.stream.launch(lambda: None, position=bench.record())
    entered.wait()
    assert bench.states() == [State.STARTED, State.SCHEDULED]
    gate.set()
    bench.stream.synchronize()
    assert bench.states() == [State.COMPLETED, State.COMPLETED]
    assert bench.board.read()[0].completed == 2


def test_nothing_runs_after_an_error(bench: Bench) -> None:
    done: list[int] = []

    def broken() -> None:
        raise RuntimeError("connection closed by peer")

    bench.stream.launch(broken, position=bench.record())
    bench.stream.launch(done.append, 1, position=bench.record())
    with pytest.raises(RuntimeError, match="connection closed by peer"):
        bench.stream.synchronize()
    assert done == []
    assert bench.states() == [State.STARTED, State.SCHEDULED]


def test_work_is_part_of_a_call_that_is_recorded_already(bench: Bench) -> None:
    suppressed: list[bool] = []
    bench.stream.launch(lambda: suppressed.append(scope.is_suppressed()))
    bench.stream.synchronize()
    assert suppressed == [True]
    assert not scope.is_suppressed()
