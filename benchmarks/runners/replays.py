"""What it costs to record that a CUDA graph is replayed, beside one call that is recorded."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.runners.timing import Loop, Sample, in_turns
from ncclscope.tracing.graphs import TracedGraph
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes.cuda_graphs import CudaGraphProbe

__all__ = ["ONE", "captured", "measure"]

ONE = "one record"
CALLS = (1, 62, 200)
COMMS = (1, 3)


def measure(directory: Path, *, rounds: int, count: int) -> dict[str, Sample]:
    """Measure in turns.

    Args:
        directory: For the ring.
        rounds: How often each loop is run.
        count: Repetitions in a round.

    Returns:
        Nanoseconds by name; that of a single record is :data:`ONE`.
    """
    with ExitStack() as stack:
        tracer = Tracer(directory / "replays", rank=0, world_size=2, heartbeat=False)
        stack.callback(tracer.close)
        comms = [tracer.communicator(f"key {n}", f"tp:{n}", [0, 1], "nccl") for n in range(3)]
        loops: dict[str, Loop] = {"nothing": _nothing, ONE: _posts(tracer, comms[0])}
        for used in COMMS:
            for calls in CALLS:
                if calls < used:
                    continue
                graph = captured(tracer, comms[:used], calls)
                name = f"{calls} {'call' if calls == 1 else 'calls'} on {used} communicator"
                loops[f"{name}{'' if used == 1 else 's'}"] = _replays(graph)
        graph = captured(tracer, comms[:1], 62)
        loops["62 calls on 1 communicator, through the probe"] = _probed(stack, graph)
        loops["a graph without calls, through the probe"] = _probed(stack, None)
        taken = in_turns(loops, rounds=rounds, count=count)
        empty = taken.pop("nothing")
        return {name: sample.over(empty) for name, sample in taken.items()}


def _nothing(count: int) -> None:
    for _ in range(count):
        pass


def _posts(tracer: Tracer, comm: Any) -> Loop:
    template = tracer.template(comm, "all_reduce", dtype="float32", redop="sum", numel=30)
    post, channel = tracer.post, comm.channel

    def loop(count: int) -> None:
        for _ in range(count):
            post(channel, template.fixed, template.signature)

    return loop


def captured(tracer: Tracer, comms: list[Any], calls: int) -> TracedGraph:
    """Capture a number of calls, on communicators in turns."""
    begun = tracer.graphs.begin()
    for number in range(calls):
        comm = comms[number % len(comms)]
        tracer.record(comm, "all_reduce", shape=(8, 64), dtype="bfloat16", captured=True)
    return tracer.graphs.end(begun)


def _replays(graph: TracedGraph) -> Loop:
    def loop(count: int) -> None:
        for _ in range(count):
            graph.replay()

    return loop


def _probed(stack: ExitStack, recorded: TracedGraph | None) -> Loop:
    """Replay by way of torch's method, which does nothing else here."""
    module: Any = ModuleType("benchmarks.runners.stand_in")
    module.CUDAGraph = type("CUDAGraph", (), {"replay": lambda self: None})
    probe = CudaGraphProbe()
    probe.active = True
    probe.install(module)
    stack.callback(probe.revert)
    graph = module.CUDAGraph()
    if recorded is not None:
        probe._graphs[id(graph)] = recorded

    def loop(count: int) -> None:
        for _ in range(count):
            graph.replay()

    return loop
