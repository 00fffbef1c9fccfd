"""Host time of ncclscope's own code to count a call on the device, without the driver.

A function that does nothing replaces the driver's launch: what it costs to cross
into the driver is measured on a GPU host, by tests/gpu/test_device_progress.py.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.runners.timing import Loop, Sample, in_turns
from ncclscope.ring.channel import Channel
from ncclscope.tracing.device.driver import Launcher
from ncclscope.tracing.device.markers import DeviceMarks, Marks
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes.posting import put_posting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import Handle, Handles

__all__ = ["RECORDED", "measure"]

RECORDED = "a call through a probe, recorded"
_VARIABLE = "NCCLSCOPE_DEVICE_PROGRESS"


class _Device(DeviceMarks):
    """A device whose launches take no time."""

    def prepare(self, ordinal: int, stream: int, marks: Marks) -> bool:
        self.ordinal = ordinal
        return True

    def launcher(self, channel: Channel, which: int, more: int) -> Launcher:
        return lambda stream: 0


def measure(directory: Path, *, rounds: int, count: int) -> dict[str, Sample]:
    """Measure in turns.

    Args:
        directory: For the rings.
        rounds: How often each loop is run.
        count: Repetitions in a round.

    Returns:
        Nanoseconds by name; that of a call that is recorded only is :data:`RECORDED`.
    """
    with ExitStack() as stack:
        loops: dict[str, Loop] = {
            "nothing": _posts(stack, directory, "", patched=False),
            RECORDED: _posts(stack, directory, ""),
            "and counted when it has finished": _posts(stack, directory, "1"),
            "and when it is entered": _posts(stack, directory, "entered"),
        }
        taken = in_turns(loops, rounds=rounds, count=count)
        empty = taken.pop("nothing")
        return {name: sample.over(empty) for name, sample in taken.items()}


def _posts(stack: ExitStack, directory: Path, mode: str, *, patched: bool = True) -> Loop:
    before = os.environ.pop(_VARIABLE, None)
    os.environ |= {_VARIABLE: mode} if mode else {}
    try:
        tracer = Tracer(directory / "device", rank=0, world_size=2, heartbeat=False)
    finally:
        os.environ.pop(_VARIABLE, None)
        os.environ |= {} if before is None else {_VARIABLE: before}
    stack.callback(tracer.close)
    if tracer.ring.slots is not None:
        tracer.device = _Device(tracer, tracer.ring.slots, enters=mode == "entered")
    comm = tracer.communicator("key", "tp:0", [0, 1], "nccl")
    library: Any = type("Library", (), {"all_reduce": lambda self, tensor: None})
    if patched:
        probe = Patch()
        probe.active = True
        parameters = "all_reduce", (15, 2), "float32", "sum"
        put_posting(
            probe,
            library,
            "all_reduce",
            lambda args, kwargs: parameters,
            Handles(lambda thing: Handle(tracer, comm, on_device=True)),
            where=lambda args, kwargs: (0, 7),
            returns_none=True,
        )
        stack.callback(probe.revert)
    thing = library()

    def loop(count: int) -> None:
        for _ in range(count):
            thing.all_reduce(None)

    return loop
