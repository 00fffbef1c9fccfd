"""vLLM before 0.32 made its communicator in the middle of __init__, and had fewer methods.

The class here has the shape of 0.26's, since vLLM 0.32 is what the tests install.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from tests.integration.c10d_ranks import fields, main, start

pytest.importorskip("torch")


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


class NCCLLibrary:
    refuses = False

    def ncclCommInitRank(self, size: int, unique_id: UniqueId, rank: int) -> int:
        if self.refuses:
            raise RuntimeError("in the place of a hang")
        return 1


class PyNcclCommunicator:
    def __init__(self, group: Any, device: str) -> None:
        self.group = group
        self.rank, self.world_size = 0, 2
        self.nccl = NCCLLibrary()
        self.disabled = False
        self.unique_id = UniqueId((ctypes.c_byte * 128)(*range(128)))
        if group == "other":
            self.unique_id.internal[0] = 99
        self.device = device
        self.comm = self.nccl.ncclCommInitRank(self.world_size, self.unique_id, self.rank)
        self.all_reduce(ones(1))

    def all_reduce(self, in_tensor: Any, out_tensor: Any = None, op: Any = None) -> Any:
        return in_tensor

    def all_gather(self, renamed: Any, by_now: Any) -> Any:
        return by_now


def ones(*shape: int) -> Any:
    import torch

    return torch.ones(*shape)


def connect(rank: int) -> None:
    import torch.distributed

    name = "vllm.distributed.device_communicators.pynccl"
    module = types.ModuleType(name)
    vars(module).update(PyNcclCommunicator=PyNcclCommunicator, NCCLLibrary=NCCLLibrary)
    sys.modules[name] = module
    from ncclscope_patches import registry

    registry._installed["ncclscope_patches.vllm.pynccl:PyNcclProbe"].apply()
    comm = PyNcclCommunicator(None, "cpu")
    assert comm.all_gather(1, 2) == 2
    NCCLLibrary.refuses = True
    with pytest.raises(RuntimeError, match="in the place of a hang"):
        PyNcclCommunicator("other", "cpu")
    assert torch.distributed.is_available()


def test_communicator_is_known_before_it_connects_and_warms_up(rings: Path) -> None:
    process = start(__file__, "connect", {"NCCLSCOPE_DIR": str(rings)})
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output

    (rank,) = open_run(rings).others
    first, second = rank.logs.values()
    assert [fields(call, "op", "shape", "redop") for call in first.span(1, 9)] == [
        ("all_reduce", (1,), "sum")
    ]
    assert second.calls == 0
    assert first.communicator.key != second.communicator.key
    why = "it has no parameter 'input_tensor' in this version"
    assert f"all_gather of pynccl is not recorded: {why}" in output
    assert rank.details["probes"]["pynccl"]["state"] == "on"
    assert rank.details["probes"]["pynccl.all_gather"] == {"state": "refused", "why": why}


def wrap_first(rank: int) -> None:
    """Have another plugin wrap methods before the probe comes, in three ways, and call them."""

    class Wrapped(PyNcclCommunicator):
        def all_gather(self, output_tensor: Any, input_tensor: Any, stream: Any = None) -> Any:
            return output_tensor

        def reduce_scatter(self, *given: Any, **named: Any) -> Any:
            return "scattered"

        def broadcast(self, first: Any, second: Any) -> Any:
            return first

    own = Wrapped.all_gather, Wrapped.all_reduce

    def all_gather(self: Any, *args: Any, **kwargs: Any) -> Any:
        return own[0](self, *args, **kwargs)

    @functools.wraps(PyNcclCommunicator.all_reduce)
    def all_reduce(*args: Any, **kwargs: Any) -> Any:
        return own[1](*args, **kwargs)

    vars_of: Any = Wrapped
    vars_of.all_gather, vars_of.all_reduce = all_gather, all_reduce

    name = "vllm.distributed.device_communicators.pynccl"
    module = types.ModuleType(name)
    vars(module).update(PyNcclCommunicator=Wrapped, NCCLLibrary=NCCLLibrary)
    sys.modules[name] = module
    from ncclscope_patches import registry

    registry._installed["ncclscope_patches.vllm.pynccl:PyNcclProbe"].apply()
    comm: Any = Wrapped(None, "cpu")
    comm.all_gather(ones(4), ones(2))
    comm.all_gather(ones(6), input_tensor=ones(3))
    comm.all_reduce(ones(5), op="max")
    assert comm.reduce_scatter(a_list=[1, 2]) == "scattered"
    comm.reduce_scatter(ones(2), ones(4))
    comm.all_gather(ones(2), ones(1))


def test_what_another_plugin_has_wrapped_is_recorded(rings: Path) -> None:
    pytest.importorskip("torch")
    process = start(__file__, "wrap_first", {"NCCLSCOPE_DIR": str(rings)})
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output

    (rank,) = open_run(rings).others
    (log,) = rank.logs.values()
    assert [fields(call, "op", "shape", "redop") for call in log.span(1, log.calls + 1)] == [
        ("all_reduce", (1,), "sum"),
        ("all_gather", (2,), None),
        ("all_gather", (3,), None),
        ("all_reduce", (5,), "max"),
        ("all_gather", (1,), None),
    ]
    probes = rank.details["probes"]
    assert probes["pynccl"]["state"] == "on"
    assert probes["pynccl.broadcast"]["state"] == "refused"
    assert probes["pynccl.reduce_scatter"]["state"] == "ended"
    assert "pynccl.all_gather" not in probes


if __name__ == "__main__":
    main(globals())
