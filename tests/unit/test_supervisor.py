"""What reaches both `run` and its sentinel is passed on to nobody, however late either is heard."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ncclscope.launch import supervisor
from ncclscope.launch.signals import Received
from ncclscope.launch.supervisor import Supervisor

CONTINUE, STOP = Received(signal.SIGCONT, 0, 1), Received(signal.SIGTSTP, 0, 1)
LATE = 0.5
"""Seconds for which `run` gets no processor: longer than it waits for the sentinel."""


class Reader:
    """The signals of `run`, by a script: what each read returns."""

    def __init__(self, *reads: Sequence[Received]) -> None:
        self._reads: Iterator[Sequence[Received]] = iter(reads)

    def read(self) -> Sequence[Received]:
        return next(self._reads, ())


class Sentinel:
    """The sentinel, by a script: what each read of its reports returns."""

    pid = 1 << 22

    def __init__(self, *reads: Sequence[int]) -> None:
        self._reads = iter(reads)

    def read(self) -> Sequence[int]:
        return next(self._reads, ())

    ask = read


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(supervisor, "time", clock)
    return clock


class Watched(Supervisor):
    """Lists what it passes on."""

    def __init__(self, reader: Reader, sentinel: Sentinel) -> None:
        self._reader: Any = reader
        self._sentinel: Any = sentinel
        self._companion = None
        self._received = set()
        self._by_terminal = False
        self._single = []
        self._early = []
        self.passed: list[int] = []

    def _pass_on(self, one: Received) -> None:
        self.passed.append(one.number)

    def _take_shared(self, one: Received) -> None:
        """Do nothing: the program is in the group."""

    def turn(self, clock: Clock, pause: float = 0.0) -> None:
        """Do what a turn of the loop does; between both parts no processor is to be had."""
        self._receive()
        clock.now += pause
        self._settle()


def test_a_signal_that_the_sentinel_reports_first_is_passed_on_by_nobody(clock: Clock) -> None:
    run = Watched(Reader([], [CONTINUE]), Sentinel([signal.SIGCONT]))
    run.turn(clock, LATE)
    run.turn(clock, LATE)
    run.turn(clock, LATE)
    assert run.passed == []


def test_a_signal_that_the_sentinel_reports_last_is_passed_on_by_nobody(clock: Clock) -> None:
    run = Watched(Reader([CONTINUE]), Sentinel([], [signal.SIGCONT]))
    run.turn(clock, LATE)
    run.turn(clock, LATE)
    assert run.passed == []


def test_a_signal_to_run_alone_is_passed_on(clock: Clock) -> None:
    run = Watched(Reader([CONTINUE]), Sentinel())
    run.turn(clock, LATE)
    assert run.passed == [signal.SIGCONT]


def test_a_report_of_long_ago_is_of_another_signal(clock: Clock) -> None:
    run = Watched(Reader([], [], [CONTINUE]), Sentinel([signal.SIGCONT]))
    run.turn(clock, LATE)
    run.turn(clock, LATE)
    run.turn(clock, LATE)
    assert run.passed == [signal.SIGCONT]


@pytest.mark.parametrize(("first", "second"), [(CONTINUE, STOP), (STOP, CONTINUE)])
def test_a_signal_that_the_next_has_revoked_is_passed_on_by_nobody(
    clock: Clock, first: Received, second: Received
) -> None:
    """The kernel discards a pending SIGCONT at a signal that stops, and the reverse."""
    run = Watched(Reader([first], [second]), Sentinel([], [second.number]))
    run.turn(clock)
    run.turn(clock, LATE)
    run.turn(clock, LATE)
    assert run.passed == []
