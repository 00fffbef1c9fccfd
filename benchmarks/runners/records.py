"""What it costs to record one call: in this process, without any transfer."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.runners.timing import Loop, Sample, in_turns
from ncclscope.model.signature import sign
from ncclscope.tracing import session
from ncclscope.tracing.tracer import Tracer
from ncclscope_patches.probes.c10d import C10dProbe
from ncclscope_patches.vllm.pynccl import PyNcclProbe

__all__ = [
    "StandInProbe",
    "bytes_of_a_line",
    "bytes_of_a_record",
    "measure",
    "pynccl_module",
]

LINE = {
    "call": "all_reduce",
    "comm": "0123456789abcdef0123456789abcdef",
    "seq": 1,
    "t_ns": 1795165653367456915,
    "shape": [15, 2],
    "dtype": "float32",
    "redop": "sum",
    "state": "scheduled",
    "site": "rms_norm_tp.py:30 _all_reduce_variance",
}


def bytes_of_a_line() -> int:
    """Size of one call as a line of a trace."""
    return len(json.dumps(LINE, separators=(",", ":"))) + 1


def bytes_of_a_record(tracer: Tracer) -> float:
    """Size of one call in a ring, with its share of all that is in the file."""
    return os.path.getsize(tracer.path) / tracer.ring.capacity


def measure(directory: Path, *, rounds: int, count: int) -> tuple[dict[str, Sample], float]:
    """Measure in turns.

    Args:
        directory: For what is written. ``NCCLSCOPE_DIR`` must name a place for the probes' ring.
        rounds: How often each loop is run.
        count: Repetitions in a round.

    Returns:
        Nanoseconds by name, and the bytes of a record in the ring.
    """
    with ExitStack() as stack:
        tracer = Tracer(directory, rank=0, world_size=2, heartbeat=False)
        stack.callback(tracer.close)
        loops = {
            "nothing": _nothing,
            "append a dict": _append(),
            "write a JSON line": _write(stack.enter_context(open(directory / "lines", "w"))),
            "Tracer.post": _post(tracer),
            "Tracer.record": _record(tracer),
        }
        loops |= _pynccl(stack)
        loops |= _c10d(stack)
        taken = in_turns(loops, rounds=rounds, count=count)
        _check(calls=rounds * count * sum("probe" in name for name in loops) // 2)
        size = bytes_of_a_record(tracer)
    empty = taken.pop("nothing")
    found = {}
    for name, sample in taken.items():
        if name.endswith(PLAIN):
            continue
        found[name] = sample.over(taken.get(name + PLAIN, empty))
    return found, size


PLAIN = ", not traced"


def _check(calls: int) -> None:
    """A probe that is off costs nothing, and must not be measured."""
    tracer = session.current()
    if tracer is None or tracer.ring.position < calls:
        raise SystemExit("the probes did not record what they were measured with")


def _nothing(count: int) -> None:
    for _ in range(count):
        pass


def _append() -> Loop:
    def loop(count: int) -> None:
        kept: list[dict[str, Any]] = []
        for seq in range(count):
            kept.append({"op": "all_reduce", "comm": "tp:0", "seq": seq, "shape": (15, 2)})

    return loop


def _write(file: Any) -> Loop:
    line = dict(LINE)

    def loop(count: int) -> None:
        for seq in range(count):
            line["seq"] = seq
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    return loop


def _post(tracer: Tracer) -> Loop:
    comm = tracer.communicator("post", "tp:0", [0, 1], "nccl")
    fixed = tracer.ring.fixed(comm.channel, "all_reduce", dtype="float32", redop="sum", numel=30)
    signed = sign("all_reduce", dtype="float32", redop="sum", numel=30)
    post, channel = tracer.post, comm.channel

    def loop(count: int) -> None:
        for _ in range(count):
            post(channel, fixed, signed)

    return loop


def _record(tracer: Tracer) -> Loop:
    comm = tracer.communicator("record", "tp:0", [0, 1], "nccl")
    record = tracer.record

    def loop(count: int) -> None:
        for _ in range(count):
            record(comm, "all_reduce", shape=(15, 2), dtype="float32", redop="sum")

    return loop


# --- probes ------------------------------------------------------------------------------------


class _Communicator:
    """In place of vLLM's ``PyNcclCommunicator``: the parameters are the same, nothing is sent."""

    def __init__(self) -> None:
        self.disabled = False
        self.group = None
        self.unique_id = SimpleNamespace(internal=bytes(128))

    def all_reduce(
        self,
        in_tensor: Any,
        out_tensor: Any = None,
        op: Any = dist.ReduceOp.SUM,
        stream: Any = None,
    ) -> Any:
        return out_tensor

    def all_gatherv(
        self, output_tensor: Any, input_tensor: Any, sizes: list[int], stream: Any = None
    ) -> None:
        return None

    def all_gather(self, output_tensor: Any, input_tensor: Any, stream: Any = None) -> None:
        return None

    def group_start(self) -> None:
        return None

    def group_end(self) -> None:
        return None


class StandInProbe(PyNcclProbe):
    """Records the calls of the class in :func:`pynccl_module`."""

    target = "benchmarks.runners.stand_in"


def pynccl_module() -> Any:
    """Return a module with a class like vLLM's."""
    module: Any = ModuleType(StandInProbe.target)
    module.PyNcclCommunicator = type("PyNcclCommunicator", (_Communicator,), {})
    for name in ("all_reduce", "all_gatherv", "all_gather", "group_start", "group_end"):
        setattr(module.PyNcclCommunicator, name, getattr(_Communicator, name))
    module.NCCLLibrary = type("NCCLLibrary", (), {})
    return module


def _pynccl(stack: ExitStack) -> dict[str, Loop]:
    traced, plain = pynccl_module(), pynccl_module()
    probe = StandInProbe()
    probe.active = True
    probe.install(traced)
    stack.callback(probe.revert)
    tensor, sizes = torch.zeros(15, 2), [15, 14]

    def sums(module: Any) -> Loop:
        comm = module.PyNcclCommunicator()

        def loop(count: int) -> None:
            for _ in range(count):
                comm.all_reduce(tensor)

        return loop

    def gathers(module: Any) -> Loop:
        comm = module.PyNcclCommunicator()

        def loop(count: int) -> None:
            for _ in range(count):
                comm.all_gatherv(tensor, tensor, sizes)

        return loop

    return {
        "pynccl probe, all_reduce": sums(traced),
        "pynccl probe, all_reduce" + PLAIN: sums(plain),
        "pynccl probe, all_gatherv": gathers(traced),
        "pynccl probe, all_gatherv" + PLAIN: gathers(plain),
    }


def _c10d(stack: ExitStack) -> dict[str, Loop]:
    """Return the functions of torch.distributed on torch's fake backend, which sends nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    stack.callback(dist.destroy_process_group)
    tensor = torch.zeros(15, 2)

    def plain(count: int) -> None:
        for _ in range(count):
            dist.all_reduce(tensor)

    def traced(count: int) -> None:
        probe = C10dProbe()
        probe.apply()
        try:
            plain(count)
        finally:
            probe.revert()

    def untraced(count: int) -> None:
        probe = C10dProbe()  # installing and removing it is not what a call costs
        probe.apply()
        probe.revert()
        plain(count)

    return {"c10d probe, all_reduce": traced, "c10d probe, all_reduce" + PLAIN: untraced}
