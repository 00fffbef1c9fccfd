"""Note communication that no probe can record.

C++ code or other libraries enqueue it. But Python sees where such use begins, so the ring can name
the communicators whose records are incomplete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from ncclscope.tracing import coverage
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.from_cpp import dispatcher
from ncclscope_patches.probes.probe import Note
from ncclscope_patches.probes.recording import NOBODY

_getframe = sys._getframe
_CALLER = 2
"""Frames from a ``before`` hook to the caller of the function that it guards."""

_RECORDED_USERS = "vllm.distributed.device_communicators."
"""Modules whose use of symmetric memory is recorded by :mod:`ncclscope_patches.vllm.kernels`."""


class _Note(Note):
    """Notes the first use of a communication path.

    Attributes:
        kind: Identifier of the use.
        text: Description for the user.
        functions: Functions with which the use begins; ``Class.method`` for methods.
    """

    kind: ClassVar[str]
    text: ClassVar[str]
    functions: ClassVar[tuple[str, ...]] = ()

    def install(self, module: Any) -> None:
        for path in self.functions:
            *classes, name = path.split(".")
            owner = module
            for part in classes:
                owner = getattr(owner, part, None)
            self.replace(owner, name, self.begin)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the use; called with the arguments of one of `functions`."""
        coverage.unseen(self.kind, self.text)


class CompiledNote(_Note):
    """Compiled graphs with a C++ wrapper: their functional collectives bypass Python."""

    name = "compiled"
    target = "torch._inductor.codecache"
    kind = "compiled"
    text = "graphs compiled with a C++ wrapper enqueue their collectives from C++"
    functions = ("CppWrapperCodeCache.load_pybinding_async", "CppWrapperCodeCache.load_pybinding")

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for source in (*args, *kwargs.values()):
            if isinstance(source, str) and "_c10d_functional" in source:
                if not dispatcher.reads_reductions():
                    super().begin(args, kwargs)
                dispatcher.record_from_now(self.kind, self.text)


class RpcNote(_Note):
    """Remote calls between the processes of a job."""

    name = "rpc"
    target = "torch.distributed.rpc"
    kind = "rpc"
    text = "remote calls of torch.distributed.rpc are not recorded"
    functions = ("init_rpc",)


class SymmetricMemoryNote(_Note):
    """Kernels that wait for flags in the memory of their peers."""

    name = "symmetric_memory"
    target = "torch.distributed._symmetric_memory"
    kind = "symmetric_memory"
    text = "kernels on torch's symmetric memory wait for peers without a collective"
    functions = ("rendezvous",)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if str(_getframe(_CALLER).f_globals.get("__name__")).startswith(_RECORDED_USERS):
            return
        group = args[1] if len(args) > 1 else kwargs.get("group", kwargs.get("group_name"))
        handle = process_groups.handles.of(process_groups.resolved(group))
        if handle is not NOBODY and handle.comm is not None:
            coverage.unseen(self.kind, self.text, [handle.comm.key])


class CupyNote(_Note):
    """CuPy's own communicators."""

    name = "cupy"
    target = "cupyx.distributed._nccl_comm"
    supports = "cupy 12 to 14"
    kind = "nccl"
    text = "NCCL is used without torch"
    functions = ("NCCLBackend.__init__",)


class RayGroupNote(CupyNote):
    """Communicators of ``ray.util.collective``."""

    name = "ray_collective"
    target = "ray.util.collective.collective_group.nccl_collective_group"
    functions = ("NCCLGroup.__init__",)


class RayNcclNote(CupyNote):
    """Communicators of Ray's compiled graphs."""

    name = "ray_channel"
    target = "ray.experimental.channel.nccl_group"
    functions = ("_NcclGroup.__init__",)


class MpiNote(_Note):
    """MPI next to torch, in a job of several processes."""

    name = "mpi4py"
    target = "mpi4py.MPI"
    supports = "mpi4py 3 and 4"
    kind = "mpi"
    text = "messages of mpi4py are not recorded"

    def install(self, module: Any) -> None:
        size: Callable[[], int] = module.COMM_WORLD.Get_size
        if module.Is_initialized() and size() > 1:
            coverage.unseen(self.kind, self.text)
