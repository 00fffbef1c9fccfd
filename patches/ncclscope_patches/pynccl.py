"""Records what vLLM posts through its own NCCL binding.

vLLM's workers hand tensors to NCCL by ctypes, past torch.distributed: neither torch's
Flight Recorder nor a probe of c10d sees these calls. ``PyNcclCommunicator`` is the one
place they all pass, and it runs inside opaque custom ops, where Dynamo does not look.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from ncclscope.tracing import scope, session
from ncclscope_patches import process_groups
from ncclscope_patches.device_streams import STREAM_UNKNOWN, Place, Where, checked, end_group
from ncclscope_patches.posting import Read, put_posting
from ncclscope_patches.probe import Before, Patch
from ncclscope_patches.recording import NOBODY, Handle, Handles, record, redop_name, watch_captures

__all__ = ["PyNcclProbe", "handles"]

_getframe = sys._getframe

_CALLER = 2
"""Frames from a ``before`` hook to the caller of the function that it guards."""


class PyNcclProbe(Patch):
    """Records every method of ``PyNcclCommunicator`` that posts work, before it is posted.

    A v-collective is one record, though NCCL gets a group of broadcasts or reductions.
    Calls on a communicator that is switched off are not recorded: nothing is posted.
    """

    name = "pynccl"
    target = "vllm.distributed.device_communicators.pynccl"
    supports = "vllm 0.26 to 0.32"

    def install(self, module: Any) -> None:
        cls = module.PyNcclCommunicator
        for name, reader in _READERS.items():
            read = self._reader_for(cls, name, reader)
            if read is not None:
                where = _where(cls, name, module)
                put_posting(self, cls, name, read, handles, can_be_off=True, where=where)
        read = self._reader_for(cls, "scatter", _scatter)
        if read is not None:
            # The sends and receives it is made of are no calls of the program.
            enter = _entering_fold(read)
            self.put(cls, "scatter", self.guard_scope(cls.scatter, enter, _leave_fold))
        for name, applies in (("suspend", _can_suspend), ("resume", _is_suspended)):
            put_posting(
                self, cls, name, _plain(name), handles, can_be_off=True, applies=applies,
                where=_where(cls, name, module),
            )  # fmt: skip
        self._number_groups(cls)
        self._declare_before_init(cls, module.NCCLLibrary)

    def _reader_for(self, cls: Any, name: str, make: Callable[[_Signature], Read]) -> Read | None:
        """Returns None where the method does not exist or takes something else by now."""
        function = getattr(cls, name, None)
        if function is None:
            return None
        try:
            return make(_Signature(function))
        except LookupError as error:
            session.warn_once(f"pynccl {name}", f"{name} of pynccl is not recorded: {error}")
            return None

    def _number_groups(self, cls: Any) -> None:
        def start(_token: Any, _result: Any) -> None:
            scope.enter_group()

        def enter(_args: Any, _kwargs: Any) -> bool:
            scope.enter_group()
            return True

        def leave(_token: Any) -> None:
            scope.leave_group()
            end_group(failed=sys.exc_info()[0] is not None)

        self.replace(cls, "group_start", after=start)
        if hasattr(cls, "group_end"):
            end = self.guard_scope(cls.group_end, lambda args, kwargs: True, leave)
            self.put(cls, "group_end", end)
        if hasattr(cls, "batch_isend_irecv"):
            batch = self.guard_scope(cls.batch_isend_irecv, enter, leave)
            self.put(cls, "batch_isend_irecv", batch)

    def _declare_before_init(self, cls: Any, library: Any) -> None:
        """Makes the communicator known before NCCL connects, where a rank may hang."""

        def declare(args: tuple[Any, ...], _kwargs: Any) -> None:
            handles.of(args[0])

        if self.replace(cls, "_init_comm", declare):
            return

        # Before 0.32 that happened in the middle of __init__, which alone knows the group.
        initialising: dict[int, Any] = {}

        def enter(args: tuple[Any, ...], _kwargs: Any) -> int:
            initialising[threading.get_ident()] = args[0]
            return threading.get_ident()

        def leave(thread: int) -> None:
            initialising.pop(thread, None)

        def connect(_args: Any, _kwargs: Any) -> None:
            comm = initialising.get(threading.get_ident())
            if comm is not None:
                handles.of(comm)

        self.put(cls, "__init__", self.guard_scope(cls.__init__, enter, leave))
        self.replace(library, "ncclCommInitRank", connect)


def _open(comm: Any) -> Handle:
    tracer = session.current()
    unique_id = getattr(comm, "unique_id", None)
    if tracer is None or unique_id is None:
        return NOBODY
    # Made by rank 0 and sent to all members: what they share and nobody else has.
    digest = blake2b(bytes(memoryview(unique_id.internal)), digest_size=16).hexdigest()
    group = comm.group
    label = process_groups.label_of(group).removesuffix(process_groups.CPU_SUFFIX)
    watch_captures()
    return Handle(
        tracer,
        tracer.communicator(
            key=f"nccl:{digest}",
            label=label,
            ranks=process_groups.global_ranks(group),
            backend="nccl",
        ),
        on_device=True,
    )


handles = Handles(_open)


def _where(cls: Any, name: str, module: Any) -> Where:
    """Returns what finds the stream of a call: the one it is given, or vLLM's current one."""
    function = getattr(cls, name, None)
    names = list(inspect.signature(function).parameters) if callable(function) else []
    at = names.index("stream") if "stream" in names else len(names)
    current = getattr(module, "current_stream", None)

    def where(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place | int:
        comm = args[0]
        given = args[at] if len(args) > at else kwargs.get("stream")
        if given is None and current is not None:
            given = current()
        ordinal = comm.device.index
        if given is None or ordinal is None:
            return STREAM_UNKNOWN
        stream: int = given.cuda_stream
        return checked(handles.of(comm).marks, ordinal, stream)

    return where


def _plain(op: str) -> Read:
    """A call without parameters."""
    parameters = (op,)
    return lambda args, kwargs: parameters


def _entering_fold(read: Read) -> Before:
    """Records a call, and folds those that it is made of into it."""

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        comm = args[0]
        handle = handles.of(comm)
        if handle is not NOBODY and not comm.disabled and not scope.is_folded():
            record(handle, read(args, kwargs), _getframe(_CALLER))
        fold = scope.folded()
        fold.__enter__()
        return fold

    return enter


def _leave_fold(fold: Any) -> None:
    fold.__exit__(None, None, None)


def _can_suspend(comm: Any) -> bool:
    has_symbol = getattr(comm.nccl, "has_symbol", None)
    return not comm._suspended and (has_symbol is None or has_symbol("ncclCommSuspend"))


def _is_suspended(comm: Any) -> bool:
    return bool(comm._suspended)


class _Signature:
    """Where a method takes its parameters, by name; they have moved between versions."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._names = list(inspect.signature(function).parameters)

    def __getitem__(self, name: str) -> int:
        if name not in self._names:
            raise LookupError(f"it has no parameter {name!r} in this version")
        return self._names.index(name)


# Arguments are taken by hand below: a call a parameter would cost as much as the record.


def _all_reduce(signature: _Signature) -> Read:
    at, op_at = signature["in_tensor"], signature["op"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["in_tensor"]
        redop = args[op_at] if len(args) > op_at else kwargs.get("op", "sum")
        return "all_reduce", tensor.shape, tensor.dtype, redop_name(redop)

    return read


def _all_gather(signature: _Signature) -> Read:
    at = signature["input_tensor"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["input_tensor"]
        return "all_gather", tensor.shape, tensor.dtype

    return read


def _reduce_scatter(signature: _Signature) -> Read:
    at, op_at = signature["input_tensor"], signature["op"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["input_tensor"]
        redop = args[op_at] if len(args) > op_at else kwargs.get("op", "sum")
        return "reduce_scatter", tensor.shape, tensor.dtype, redop_name(redop)

    return read


def _all_gatherv(signature: _Signature) -> Read:
    at, sizes_at = signature["input_tensor"], signature["sizes"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["input_tensor"]
        sizes = args[sizes_at] if len(args) > sizes_at else kwargs["sizes"]
        return "all_gatherv", tensor.shape, tensor.dtype, None, None, None, None, tuple(sizes)

    return read


def _reduce_scatterv(signature: _Signature) -> Read:
    at, sizes_at, op_at = signature["input_tensor"], signature["sizes"], signature["op"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["input_tensor"]
        sizes = args[sizes_at] if len(args) > sizes_at else kwargs["sizes"]
        redop = redop_name(args[op_at] if len(args) > op_at else kwargs.get("op", "sum"))
        return "reduce_scatterv", tensor.shape, tensor.dtype, redop, None, None, None, tuple(sizes)

    return read


def _reduce(signature: _Signature) -> Read:
    at, root_at, op_at = signature["input_tensor"], signature["root"], signature["op"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["input_tensor"]
        root = args[root_at] if len(args) > root_at else kwargs["root"]
        redop = redop_name(args[op_at] if len(args) > op_at else kwargs.get("op", "sum"))
        return "reduce", tensor.shape, tensor.dtype, redop, root

    return read


def _broadcast(signature: _Signature) -> Read:
    at, root_at = signature["tensor"], signature["src"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["tensor"]
        root = args[root_at] if len(args) > root_at else kwargs["src"]
        return "broadcast", tensor.shape, tensor.dtype, None, root

    return read


def _send(signature: _Signature) -> Read:
    at, peer_at = signature["tensor"], signature["dst"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["tensor"]
        peer = args[peer_at] if len(args) > peer_at else kwargs["dst"]
        return "send", tensor.shape, tensor.dtype, None, None, peer

    return read


def _recv(signature: _Signature) -> Read:
    at, peer_at = signature["tensor"], signature["src"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["tensor"]
        peer = args[peer_at] if len(args) > peer_at else kwargs["src"]
        return "recv", tensor.shape, tensor.dtype, None, None, peer

    return read


def _scatter(signature: _Signature) -> Read:
    out_at, at = signature["output_tensor"], signature["input_tensor"]
    sizes_at, root_at = signature["sizes"], signature["root"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        output = args[out_at] if len(args) > out_at else kwargs["output_tensor"]
        given = args[at] if len(args) > at else kwargs["input_tensor"]
        sizes = args[sizes_at] if len(args) > sizes_at else kwargs["sizes"]
        root = args[root_at] if len(args) > root_at else kwargs.get("root", 0)
        # The input is the root's alone; rows are as wide in what the others get.
        shape = given.shape if args[0].rank == root else output.shape
        return "scatterv", shape, output.dtype, None, root, None, None, tuple(sizes), output.shape

    return read


def _register_window(signature: _Signature) -> Read:
    at = signature["tensor"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["tensor"]
        size = tensor.numel() * tensor.element_size()
        return "register_window", None, None, None, None, None, size

    return read


def _register_window_raw(signature: _Signature) -> Read:
    at = signature["size"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        size = args[at] if len(args) > at else kwargs["size"]
        return "register_window", None, None, None, None, None, size

    return read


# Taking a window back is each rank's own business in NCCL, hence no part of the sequence.
_READERS: dict[str, Callable[[_Signature], Read]] = {
    "all_gather": _all_gather,
    "all_gatherv": _all_gatherv,
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "recv": _recv,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatterv": _reduce_scatterv,
    "register_comm_window": _register_window,
    "register_comm_window_raw": _register_window_raw,
    "send": _send,
}
