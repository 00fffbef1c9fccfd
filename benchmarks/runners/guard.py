"""What it costs to compare each call with those of peers before it is posted."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from benchmarks.runners import gloo
from benchmarks.runners.timing import Loop, Rounds, in_turns
from ncclscope.tracing.tracer import Comm, Tracer

__all__ = ["DETAIL", "GUARD", "PEERS", "measure", "measure_programs"]

PEERS = (0, 1, 3, 7)
"""Peers on the same host."""
PLAIN, TRACED, GUARD, DETAIL = "plain", "ncclscope", "with the guard", "DETAIL"


def measure(directory: Path, *, rounds: int, count: int) -> dict[int, Rounds]:
    """Measure one record, by the number of peers; -1 is without a guard.

    The peers post along, in turns, so that each read of their cursors finds new values.
    """
    groups = {-1: _ranks(directory / "none", 1, "")}
    for peers in PEERS:
        groups[peers] = _ranks(directory / f"peers-{peers}", peers + 1, "raise")
    loops = {str(peers): _posting(*ranks[0]) for peers, ranks in groups.items()}
    others = [_posting(*rank) for ranks in groups.values() for rank in ranks[1:]]
    for loop in others:
        loop(count)  # the round that warms up
    taken: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for loop in others:
            loop(count)
        for name, loop in loops.items():
            found = in_turns({name: _measured_once(loop)}, rounds=1, count=count)
            taken[name] += found[name].taken
    return {int(name): Rounds(own) for name, own in taken.items()}


def _measured_once(loop: Loop) -> Loop:
    """Leave out the warming up, in which the ranks would diverge from their peers."""
    calls = 0

    def measured(count: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            loop(count)

    return measured


def _ranks(directory: Path, size: int, mode: str) -> list[tuple[Tracer, Comm]]:
    before = os.environ.pop("NCCLSCOPE_GUARD", None)
    os.environ["NCCLSCOPE_GUARD"] = mode
    try:
        tracers = [Tracer(directory, rank=rank, world_size=size, heartbeat=False, capacity=4096)
                   for rank in range(size)]  # fmt: skip
    finally:
        del os.environ["NCCLSCOPE_GUARD"]
        if before is not None:
            os.environ["NCCLSCOPE_GUARD"] = before
    members = range(max(size, 2))
    return [(tracer, tracer.communicator("k", "tp:0", members)) for tracer in tracers]


def _posting(tracer: Tracer, comm: Comm) -> Loop:
    template = tracer.template(comm, "all_reduce", shape=(15, 2), dtype="bfloat16", redop="sum")
    post, channel = tracer.post, comm.channel
    fixed, signature = template.fixed, template.signature

    def loop(count: int) -> None:
        for _ in range(count):
            post(channel, fixed, signature)

    return loop


def measure_programs(directory: Path, *, rounds: int) -> dict[str, Rounds]:
    """Measure an all_reduce of two gloo ranks that is waited for, by the clock on the wall.

    torch's own check, ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, gathers what all ranks are about to
    post, twice, before each call.
    """
    quiet = {"TORCH_FR_BUFFER_SIZE": "0"}
    traced = quiet | {"NCCLSCOPE_DIR": str(directory / "traced")}
    settings = {
        PLAIN: quiet,
        TRACED: traced,
        GUARD: traced | {"NCCLSCOPE_DIR": str(directory / "guard"), "NCCLSCOPE_GUARD": "raise"},
        DETAIL: quiet | {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    }
    with ExitStack() as stack:
        variants = {
            name: stack.enter_context(gloo.started(directory / f"guard-{place}", setting))
            for place, (name, setting) in enumerate(settings.items())
        }
        return gloo.turns(variants, "wall 50", rounds)
