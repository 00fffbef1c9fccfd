"""vLLM's kernels in the place of NCCL: what is launched is what is recorded, on a name of its own.

The classes are vLLM's and the groups are real. There is no GPU here: the kernels below them do
nothing, and what the classes find out about GPUs when they are made is left out.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclscope import diagnose, open_run
from ncclscope.tracing.tracer import Tracer
from tests.integration.c10d_ranks import calls, fields, join, main, run_ranks

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

PACKAGE = "vllm.distributed.device_communicators"


class Kernels:
    """In the place of vLLM's compiled operators: takes everything and does nothing."""

    def __init__(self) -> None:
        self.launched: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.launched.append(name)


def made(name: str, cls: str, group: Any, **attributes: Any) -> tuple[Any, Any]:
    """Return an object that has not looked for GPUs, and the module of its class."""
    from importlib import import_module

    module = import_module(f"{PACKAGE}.{name}")
    thing = object.__new__(getattr(module, cls))
    vars(thing).update({"group": group, "disabled": False} | attributes)
    return thing, module


def launch_all(rank: int) -> None:
    import torch
    import torch.distributed as dist

    join()
    from ncclscope_patches.probes import process_groups

    group = dist.new_group([0, 1])
    process_groups.name(group, "tp:0/cpu")
    custom, module = made(
        "custom_all_reduce",
        "CustomAllreduce",
        group,
        _IS_CAPTURING=False,
        _ptr=0,
        rank=rank,
        world_size=2,
        buffer_ptrs=[0, 0],
        max_size=1 << 20,
        fully_connected=True,
    )
    module.ops = kernels = Kernels()
    custom.custom_all_reduce(torch.ones(4, 8))
    custom._IS_CAPTURING = True  # a warm-up: memory is allocated and nothing is launched
    torch.cuda.is_current_stream_capturing = lambda: False
    custom.custom_all_reduce(torch.ones(4, 8))
    custom._IS_CAPTURING = False
    assert custom.custom_all_reduce(torch.ones(3)) is None  # declined: 12 bytes
    custom.disabled = True
    custom.custom_all_reduce(torch.ones(4, 8))
    assert kernels.launched == ["all_reduce"]

    quick, module = made("quick_all_reduce", "QuickAllReduce", group, _ptr=0, use_fp16_kernels=0)
    module.ops = kernels = Kernels()
    quick._get_qr_quant_level = lambda tensor: 0
    quick.quick_all_reduce(torch.ones(2, 8).bfloat16())
    assert kernels.launched == ["qr_all_reduce"]

    flashinfer, module = made(
        "flashinfer_all_reduce", "FlashInferAllReduce", group, world_size=2, rank=rank
    )
    flashinfer.max_num_tokens = 8
    module.get_fi_ar_workspace = lambda **_: None
    module.flashinfer_comm = Kernels()
    module.flashinfer_comm.AllReduceFusionPattern = SimpleNamespace(kAllReduce=0)
    flashinfer.all_reduce(torch.ones(2, 16))
    assert module.flashinfer_comm.launched == ["allreduce_fusion"]

    other = dist.new_group([0, 1])
    process_groups.name(other, "ep:0/cpu")
    gather_and_scatter(rank, other)


def gather_and_scatter(rank: int, group: Any) -> None:
    """From 0.32 on there are kernels for these."""
    import torch

    custom, module = made("custom_all_reduce", "CustomAllreduce", group)
    attributes = {"_ptr": 0, "rank": rank, "world_size": 2, "buffer_ptrs": [0, 0]}
    vars(custom).update(attributes, fully_connected=True, mnnvl_only=False, batch_invariant=False)
    vars(custom).update(mnnvl_multicast_ptr=0, max_all_gather_size=1 << 10)
    vars(custom).update(max_reduce_scatter_size=1 << 10, _IS_CAPTURING=False)
    module.current_platform = SimpleNamespace(is_cuda=lambda: True)
    module.ops = kernels = Kernels()
    custom.custom_all_gather(torch.ones(4, 8))
    custom.custom_reduce_scatter(torch.ones(4, 8))
    assert custom.custom_all_gather(torch.ones(3)) is None
    assert custom.custom_reduce_scatter(torch.ones(3)) is None
    assert kernels.launched == ["custom_all_gather", "custom_reduce_scatter"]


FIELDS = ("op", "shape", "dtype", "redop")


def test_kernels_that_are_launched_are_recorded(rings: Path) -> None:
    run = run_ranks(__file__, "launch_all", rings)

    for rank in run.ranks:
        assert [fields(one, *FIELDS) for one in calls(rank, "tp:0/custom")] == [
            ("all_reduce", (4, 8), "float32", "sum")
        ]
        assert [fields(one, *FIELDS) for one in calls(rank, "tp:0/quick")] == [
            ("all_reduce", (2, 8), "bfloat16", "sum")
        ]
        assert [fields(one, *FIELDS) for one in calls(rank, "tp:0/flashinfer")] == [
            ("all_reduce", (2, 16), "float32", "sum")
        ]
        # One call of each was declined.
        assert [fields(one, *FIELDS) for one in calls(rank, "ep:0/custom")] == [
            ("all_gather", (4, 8), "float32", None),
            ("reduce_scatter", (4, 8), "float32", "sum"),
        ]
        (one,) = calls(rank, "tp:0/custom")
        assert one.site is not None
        assert "launch_all" in one.site
        comm = run.communicators[one.comm]
        assert (comm.ranks, comm.backend, comm.kind) == ((0, 1), "custom", "tp/custom")


def test_what_no_probe_sees_is_reported(tmp_path: Path) -> None:
    for rank in (0, 1):
        tracer = Tracer(tmp_path, rank=rank, world_size=2, heartbeat=False)
        tracer.record(tracer.communicator("k", "tp:0", [0, 1]), "all_reduce", shape=(4,))
        tracer.describe(unseen="all_reduce fused with a norm into one kernel")

    assert (
        "ranks 0 1: all_reduce fused with a norm into one kernel"
        in diagnose(open_run(tmp_path)).coverage.unseen
    )


if __name__ == "__main__":
    main(globals())
