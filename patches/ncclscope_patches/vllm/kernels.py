"""Record the collectives that vLLM's own kernels perform instead of NCCL.

Between GPUs of one host, ``CudaCommunicator`` runs most tensor-parallel all-reduces with kernels
that write to each other's memory, selected by the tensor's size. Like NCCL, they wait for their
peers, and can hang. They have their own sequences, named after the group: ``tp:0/custom`` next to
``tp:0``.

Like ``PyNcclCommunicator`` they run inside opaque custom ops that Dynamo does not trace. Kernels
that a compiler pass fuses with other work cannot be recorded; only the pass itself is noted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from ncclscope.tracing import coverage
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.device_streams import Place, of_tensor
from ncclscope_patches.probes.posting import ALWAYS_SUM, Read, plan, put_posting
from ncclscope_patches.probes.probe import Note, Patch
from ncclscope_patches.probes.recording import Handles

_PACKAGE = "vllm.distributed.device_communicators"


def _handles(backend: str) -> Handles:
    """Return handles for objects whose attribute ``group`` is their process group."""
    return Handles(lambda kernels: process_groups.of_library(kernels.group, backend, backend))


def _reader(op: str, name: str, redop: str | None) -> Read:
    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[1] if len(args) > 1 else kwargs[name]
        return op, tensor.shape, tensor.dtype, redop

    if redop not in (None, "sum"):
        return read
    return plan(read, op, 1, ALWAYS_SUM if redop else 0)


class _KernelProbe(Patch):
    """Records the methods of one class that launch a kernel.

    Attributes:
        owner: The class.
        backend: Its name in records.
        methods: Operation and parameter name of each method, by the method's name.
    """

    owner: ClassVar[str]
    backend: ClassVar[str]
    methods: ClassVar[dict[str, tuple[str, str]]]

    def __init__(self) -> None:
        super().__init__()
        self.handles = _handles(self.backend)

    def install(self, module: Any) -> None:
        cls = getattr(module, self.owner, None)
        if cls is None:
            self.note_state(coverage.ABSENT, f"{self.target} has no {self.owner}")
        for name, (op, parameter) in self.methods.items():
            self.put_recorded(cls, name, _reader(op, parameter, "sum"), parameter)

    def put_recorded(self, owner: Any, name: str, read: Read, parameter: str) -> bool:
        """Record each call of a method, if it exists.

        Args:
            owner: The class.
            name: Name of the method.
            read: Return the call's parameters from its arguments.
            parameter: Name of the method's tensor parameter.
        """

        def where(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place | int:
            return of_tensor(args[1] if len(args) > 1 else kwargs[parameter])

        return put_posting(self, owner, name, read, self.handles, can_be_off=True, where=where)


class CustomProbe(_KernelProbe):
    """vLLM's custom kernels over NVLink or PCIe.

    The probe is below ``custom_all_reduce``, which only allocates during warm-up. The other two
    methods decline unsuitable tensors without a kernel, so the probe checks that first.
    """

    name = "custom_all_reduce"
    target = f"{_PACKAGE}.custom_all_reduce"
    owner = "CustomAllreduce"
    backend = "custom"
    methods: ClassVar[dict[str, tuple[str, str]]] = {"all_reduce": ("all_reduce", "inp")}

    def install(self, module: Any) -> None:
        super().install(module)
        cls = module.CustomAllreduce
        for name, op, redop in (
            ("custom_all_gather", "all_gather", None),
            ("custom_reduce_scatter", "reduce_scatter", "sum"),
        ):
            suits = getattr(cls, f"should_{name}", None)
            if suits is not None and hasattr(cls, name):
                self._guard_declining(cls, name, _reader(op, "inp", redop), suits)

    def _guard_declining(self, cls: Any, name: str, read: Read, suits: Callable[..., bool]) -> None:
        direct = getattr(cls, name)
        if not self.put_recorded(cls, name, read, "inp"):
            return
        recorded = getattr(cls, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            wanted = False
            if self.active:
                try:
                    wanted = suits(*args, **kwargs)
                except Exception as error:
                    self.fail(error)
            return (recorded if wanted else direct)(*args, **kwargs)

        self.put(cls, name, functools.update_wrapper(call, direct))


class QuickProbe(_KernelProbe):
    """Quantised all-reduces between AMD GPUs."""

    name = "quick_all_reduce"
    target = f"{_PACKAGE}.quick_all_reduce"
    owner = "QuickAllReduce"
    backend = "quick"
    methods: ClassVar[dict[str, tuple[str, str]]] = {"quick_all_reduce": ("all_reduce", "inp")}


class SymmMemProbe(_KernelProbe):
    """All-reduces over torch's symmetric memory."""

    name = "symm_mem"
    target = f"{_PACKAGE}.symm_mem"
    owner = "SymmMemCommunicator"
    backend = "symm_mem"
    methods: ClassVar[dict[str, tuple[str, str]]] = {"all_reduce": ("all_reduce", "inp")}


class FlashInferProbe(_KernelProbe):
    """FlashInfer's all-reduces that are not fused with other work."""

    name = "flashinfer_all_reduce"
    target = f"{_PACKAGE}.flashinfer_all_reduce"
    owner = "FlashInferAllReduce"
    backend = "flashinfer"
    methods: ClassVar[dict[str, tuple[str, str]]] = {"all_reduce": ("all_reduce", "input_tensor")}


class FusionNote(Note):
    """Notes that a compiler pass may have fused all-reduces with what follows them.

    Compiled code calls such a kernel without a method of a communicator. The pass is visible, but
    not what it fused: earlier compilations come from a cache.
    """

    name = "fused_all_reduce"
    target = "vllm.compilation.passes.fusion.allreduce_rms_fusion"

    def install(self, module: Any) -> None:
        def made(token: Any, _result: Any) -> None:
            if not token[0][0].disabled:
                coverage.unseen("fused", "all_reduce fused with a norm into one kernel")

        for name in ("AllReduceFusionPass", "RocmAiterAllReduceFusionPass"):
            cls = getattr(module, name, None)
            if cls is not None:
                self.replace(cls, "__init__", after=made)
