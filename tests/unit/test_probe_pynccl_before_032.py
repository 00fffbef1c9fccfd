"""vLLM before 0.32 made its communicator in the middle of __init__, and had fewer methods.

The class here has the shape of 0.26's, since vLLM 0.32 is what the tests install.
"""

from __future__ import annotations

import ctypes
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

    registry._installed["ncclscope_patches.pynccl:PyNcclProbe"].apply()
    comm = PyNcclCommunicator(None, "cpu")
    assert comm.all_gather(1, 2) == 2
    NCCLLibrary.refuses = True
    with pytest.raises(RuntimeError, match="in the place of a hang"):
        PyNcclCommunicator("other", "cpu")
    assert torch.distributed.is_available()


def test_communicator_is_known_before_it_connects_and_warms_up(rings: Path) -> None:
    process = start(__file__, "connect", {"NCCLSCOPE_DIR": str(rings)})
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said

    (rank,) = open_run(rings).others
    first, second = rank.logs.values()
    assert [fields(call, "op", "shape", "redop") for call in first.span(1, 9)] == [
        ("all_reduce", (1,), "sum")
    ]
    assert second.calls == 0
    assert first.communicator.key != second.communicator.key
    assert "all_gather of pynccl is not recorded: it has no parameter 'input_tensor'" in said


if __name__ == "__main__":
    main(globals())
