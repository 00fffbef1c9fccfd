"""Claim (d): most all-reduces of tensor parallelism never come to pynccl.

    python examples/case_43547/unseen_all_reduces.py [DIR]

Asks vLLM's own CudaCommunicator.all_reduce who takes the tensors of the issue, and those of a step
of MiniMax-M2: the tensors have a shape and no data, and the backends say their names instead of
reducing. Then four ranks on the CPU are recorded, and their all-reduces counted by backend.
Needs the environment of `make test-vllm`. With DIR the rings are kept.
"""

from __future__ import annotations

import sys
from collections import Counter
from inspect import signature
from pathlib import Path
from typing import Any

from branches import attempts, methods
from rich.console import Console
from rich.table import Table
from same_collectives import start
from shell import need_vllm, parser_of, place, say

from ncclscope import open_run

COMMUNICATOR = "vllm.distributed.device_communicators.cuda_communicator"
TP = 4
HOPPER = "9.0"
"""Compute capability of the GH200s of the issue."""
LAYERS, HIDDEN = 62, 3072
"""Of MiniMax-M2."""

CONFIGURATIONS = {
    "custom all-reduce only": ("custom",),
    "with symmetric memory": ("custom", "symm_mem"),
    "neither": (),
}
"""What is there besides pynccl. Symmetric memory needs multicast between the GPUs; neither is left
by ``--disable-custom-all-reduce`` and ``VLLM_ALLREDUCE_USE_SYMM_MEM=0``."""

ISSUE = ((14, 2), (15, 2), (10733, 2), (10733, HIDDEN), (15, HIDDEN))
SIZES = (1, 2, 14, 15, 32, 33, 1365, 1366, 5461, 5462, 10733)


class Chooser:
    """vLLM's choice between all-reduces, on a machine that has none of them.

    Args:
        enabled: Backends that are there besides pynccl.
    """

    def __init__(self, enabled: tuple[str, ...]) -> None:
        from vllm.distributed.device_communicators import all_reduce_utils
        from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator
        from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce
        from vllm.distributed.device_communicators.symm_mem import SymmMemCommunicator

        limit: int = signature(CustomAllreduce.__init__).parameters["max_size"].default
        if "symm_mem" in enabled:
            limit = min(limit, all_reduce_utils.CUSTOM_ALL_REDUCE_MAX_SIZES[HOPPER][TP])
        self.communicator: Any = object.__new__(CudaCommunicator)
        vars(self.communicator).update(
            fi_ar_comm=None,
            fi_pcie_ipc_ar_comm=None,
            qr_comm=None,
            aiter_ar_comm=None,
            use_aiter_allreduce=False,
            device_group=None,
            ca_comm=self._backend(CustomAllreduce, "custom", max_size=limit, fully_connected=True)
            if "custom" in enabled
            else None,
            symm_mem_comm=self._backend(
                SymmMemCommunicator,
                "symm_mem",
                max_size=all_reduce_utils.SYMM_MEM_ALL_REDUCE_MAX_SIZES[HOPPER][TP],
            )
            if "symm_mem" in enabled
            else None,
            pynccl_comm=self._backend(object, "pynccl"),
        )

    def choose(self, shape: tuple[int, ...], dtype: str) -> str:
        """Return the backend that takes an all-reduce."""
        import torch

        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        taken: str = self.communicator.all_reduce(tensor)
        return taken

    @staticmethod
    def _backend(kind: Any, name: str, **attributes: Any) -> Any:
        """Return a backend with vLLM's own conditions, that says its name instead of reducing."""
        import torch

        def take(_self: Any, _input: Any) -> str:
            return name

        own = {"all_reduce": take, "custom_all_reduce": take, "__del__": lambda _self: None}
        backend = object.__new__(type(f"Noting{kind.__name__}", (kind,), own))
        vars(backend).update(disabled=False, world_size=TP, dtype=torch.bfloat16, **attributes)
        return backend


def of_one_step(tokens: int) -> list[tuple[tuple[int, int], str, int]]:
    """Return shape, type and number of the TP all-reduces in a step of MiniMax-M2."""
    return [
        ((tokens, 2), "float32", LAYERS),  # variances of the q and k norms
        ((tokens, HIDDEN), "bfloat16", 1 + 2 * LAYERS),  # embedding, attention, experts
    ]


def list_order() -> None:
    """Print what vLLM tries, in its order."""
    (method,) = [
        each for each in methods(COMMUNICATOR, "CudaCommunicator") if each.name == "all_reduce"
    ]
    say("What CudaCommunicator.all_reduce tries before pynccl, in this order:")
    for line, condition, call in attempts(method):
        say(f"  {line:4}  {call}")
        say(f"          if {condition}")
    say()


def of_the_issue(choosers: dict[str, Chooser]) -> Table:
    """Return the backend that takes each tensor of the issue."""
    table = Table(title="who takes an all-reduce, by vLLM's own code", title_justify="left")
    for heading in ("shape", "bytes", *choosers):
        table.add_column(heading, justify="left" if heading in choosers else "right")
    for shape in ISSUE:
        dtype = "float32" if shape[1] == 2 else "bfloat16"
        size = shape[0] * shape[1] * (4 if dtype == "float32" else 2)
        taken = (chooser.choose(shape, dtype) for chooser in choosers.values())
        table.add_row(f"{list(shape)} {dtype}", f"{size:,}", *taken)
    return table


def of_minimax(choosers: dict[str, Chooser]) -> Table:
    """Return how many all-reduces of a step a patch of pynccl sees, by batch size."""
    table = Table(
        title="TP all-reduces of one step of MiniMax-M2 that come to pynccl", title_justify="left"
    )
    for heading in ("tokens", *choosers):
        table.add_column(heading, justify="right")
    for tokens in SIZES:
        row = []
        for chooser in choosers.values():
            counts: Counter[str] = Counter()
            for shape, dtype, number in of_one_step(tokens):
                counts[chooser.choose(shape, dtype)] += number
            row.append(f"{counts['pynccl']} of {counts.total()}")
        table.add_row(f"{tokens:,}", *row)
    return table


def record(directory: Path, steps: int) -> Path:
    """Record four CPU ranks; return where."""
    rings = directory / "rings"
    if start(rings, "--steps", steps).wait():
        raise SystemExit((directory / "rings.log").read_text())
    return rings


def count(rings: Path) -> Counter[tuple[str, str]]:
    """Count the all-reduces of all ranks by communicator and backend."""
    run = open_run(rings)
    counts: Counter[tuple[str, str]] = Counter()
    for rank in run.ranks:
        for key, log in rank.logs.items():
            comm = run.communicators[key]
            calls = log.span(log.first, log.calls + 1)
            reduced = sum(call.op == "all_reduce" for call in calls)
            if comm.label in ("tp:0", "dp:0/cpu"):
                counts[comm.label, comm.backend] += reduced
    return counts


def main() -> int:
    """Print the order, the choices, and what was recorded."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=200, help="to be recorded (default: 200)")
    parser.add_argument(
        "--rings", type=Path, metavar="DIR", help="count those of same_collectives.py instead"
    )
    arguments = parser.parse_args()
    need_vllm()
    list_order()
    choosers = {name: Chooser(enabled) for name, enabled in CONFIGURATIONS.items()}
    console = Console(highlight=False, width=120)
    for table in (of_the_issue(choosers), of_minimax(choosers)):
        console.print(table)
        say()
    with place(arguments.directory) as directory:
        counts = count(arguments.rings or record(directory, arguments.steps))
    say("Recorded on the CPU, where shared memory replaces custom all-reduce:")
    for (label, backend), number in sorted(counts.items()):
        say(f"  all_reduce on {label:9} {number:6,} by {backend}")
    seen = sum(
        number
        for (label, backend), number in counts.items()
        if (label, backend) == ("tp:0", "gloo")
    )
    total = sum(number for (label, _), number in counts.items() if label == "tp:0")
    say(f"A patch of torch.distributed alone would have seen {seen} of {total} on tp:0.")
    return 0 if total and not seen else 1


if __name__ == "__main__":
    sys.exit(main())
