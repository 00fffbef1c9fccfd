"""What a poll of eight ranks costs, and how long it takes until a divergence is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ncclscope import diagnose, open_run
from ncclscope.lab.launcher import Laboratory
from ncclscope.lab.plan import Program
from ncclscope.model import Finding, Run
from ncclscope.render.tui.events import Events
from ncclscope.render.tui.painter import Painter
from ncclscope.render.tui.picture import Picture
from ncclscope.tracing.tracer import Tracer
from ncclscope.watch.watch import Watcher

__all__ = ["FAULTS", "RANKS", "SIZES", "Latency", "latencies", "pictures", "samples"]

RANKS = 8
FAULTS = ("wrong_op", "wrong_size", "skipped_call", "extra_call", "divergent_dispatch")
SIZES = ((80, 24), (200, 50))
"""Columns and lines of terminals that a live view is measured on."""
_PATIENCE = 30.0
"""Seconds after which a divergence that nobody has reported counts as not found."""


def samples(directory: Path, *, calls: int, rounds: int) -> list[float]:
    """Measure polls of ranks that make a number of calls between two of them.

    Returns:
        Seconds of processor time of each poll.
    """
    tracers = [
        Tracer(directory, rank=rank, world_size=RANKS, heartbeat=False) for rank in range(RANKS)
    ]
    posts = []
    for rank, tracer in enumerate(tracers):
        for label, members in (("tp:0", range(RANKS)), ("dp:0", (rank - rank % 2, rank | 1))):
            comm = tracer.communicator(f"{label} {members}", label, members)
            template = tracer.template(comm, "all_reduce", shape=(15, 2), dtype="int8", site="x")
            posts.append((tracer, comm.channel, template))
    watcher = Watcher(directory)
    taken = []
    for number in range(rounds):
        for tracer, channel, template in posts:
            for _ in range(calls // 2):
                tracer.complete(tracer.post(channel, template.fixed, template.signature))
        start = time.process_time()
        poll = watcher.poll()
        if number:  # the first reads all there is
            taken.append(time.process_time() - start)
        if poll.status != "ok":
            raise SystemExit(f"a job in order is {poll.status}")
    return taken


def pictures(directory: Path, size: tuple[int, int], *, rounds: int) -> list[tuple[float, int]]:
    """Measure pictures of ranks that have made calls since the one before.

    Args:
        directory: Where the rings go.
        size: Columns and lines.
        rounds: How many pictures.

    Returns:
        Of each the seconds of processor time, and the bytes that a terminal would be sent.
    """
    tracers = [
        Tracer(directory, rank=rank, world_size=RANKS, heartbeat=False) for rank in range(RANKS)
    ]
    comms = [tracer.communicator("tp", "tp:0", range(RANKS)) for tracer in tracers]
    watcher, painter = Watcher(directory), Painter()
    picture = Picture(str(directory), Events())
    taken = []
    for number in range(rounds):
        for tracer, comm in zip(tracers, comms, strict=True):
            tracer.complete(tracer.record(comm, "all_reduce", shape=(15, 2), dtype="int8"))
        poll = watcher.poll()
        start = time.process_time()
        sent = painter.paint(picture.lines(poll, *size, float(number)), *size)
        taken.append((time.process_time() - start, len(sent)))
    return taken[1:]  # the first is drawn whole


@dataclass(frozen=True)
class Latency:
    """How long it took until a divergence was reported, in seconds.

    Attributes:
        fault: What was planted.
        watch: From the diverging post to the line of ``ncclscope watch``.
        guard: To the warning of the first guard that saw it; None where none did.
        known: To the post of the first peer at the same place, before which nobody can know.
    """

    fault: str
    watch: float
    guard: float | None
    known: float


def latencies(directory: Path, *, runs: int) -> Iterator[Latency]:
    """Plant divergences in the laboratory, one a run, and time who reports them."""
    for number in range(runs):
        fault = FAULTS[number % len(FAULTS)]
        rings = directory / f"latency-{number}"
        rings.mkdir()
        program = Program(tp=2, dp=2, fault=fault, seed=number)
        with (
            _watch(rings) as watch,
            _environment({"NCCLSCOPE_GUARD": "warn"}),
            Laboratory(program, rings) as laboratory,
        ):
            _wait(laboratory, watch)
            reported_ns = _reported_ns(watch)
            laboratory.kill()
        yield _latency(fault, open_run(rings), reported_ns)


def _latency(fault: str, run: Run, reported_ns: int) -> Latency:
    cause = diagnose(run).cause
    if cause is None or cause.comm is None or cause.seq is None:
        raise SystemExit(f"{fault} was reported and is not to be found")
    odd_ns, peers_ns = _posts(run, cause)
    warned = [
        int(rank.details["guard"]["time_ns"]) for rank in run.ranks if rank.details.get("guard")
    ]
    return Latency(
        fault=fault,
        watch=(reported_ns - odd_ns) / 1e9,
        guard=(min(warned) - odd_ns) / 1e9 if warned else None,
        known=max(0.0, (peers_ns - odd_ns) / 1e9),
    )


def _posts(run: Run, cause: Finding) -> tuple[int, int]:
    """Return when the diverging rank and when its first peer posted the call in question."""
    assert cause.comm is not None
    assert cause.seq is not None
    posted = {}
    for rank in run.members(cause.comm.key):
        log = rank.logs[cause.comm.key]
        if log.first <= cause.seq <= log.calls:
            posted[rank.rank] = log.call(cause.seq).time_ns or 0
    odd = set(cause.diverging_ranks or cause.candidate_ranks[-1:])
    return (
        min(when for rank, when in posted.items() if rank in odd),
        min(when for rank, when in posted.items() if rank not in odd),
    )


@contextmanager
def _watch(rings: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ncclscope", "watch", str(rings)]
    watch = subprocess.Popen(
        [*command, "--json", "--until-divergence"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield watch
    finally:
        watch.kill()
        watch.communicate()


def _wait(laboratory: Laboratory, watch: subprocess.Popen[str]) -> None:
    for progress in laboratory.watch(stall_after=_PATIENCE):
        if watch.poll() is not None:
            return
        if progress.elapsed > 4 * _PATIENCE:
            break
    raise SystemExit(f"{laboratory.program.fault} was not reported: {laboratory.outcome}")


def _reported_ns(watch: subprocess.Popen[str]) -> int:
    assert watch.stdout is not None
    *_, last = [json.loads(line) for line in watch.stdout]
    if last["status"] != "diverged":
        raise SystemExit(f"reported was {last['status']}")
    return int(last["time_ns"])


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
