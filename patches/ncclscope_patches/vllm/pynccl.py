"""Record the calls of vLLM, and of engines with the same class, through their own NCCL binding.

vLLM's workers pass tensors to NCCL through ctypes, bypassing torch.distributed. Neither torch's
Flight Recorder nor the c10d probe sees these calls. All of them go through
``PyNcclCommunicator``, which runs inside opaque custom ops that Dynamo does not trace.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from ncclscope import native
from ncclscope.tracing import coverage, scope, session
from ncclscope_patches.probes import device_streams, process_groups, works
from ncclscope_patches.probes.posting import Read, put_posting
from ncclscope_patches.probes.probe import Before, Patch
from ncclscope_patches.probes.recording import NOBODY, Handle, Handles, record, watch_captures
from ncclscope_patches.vllm.pynccl_calls import READERS, Signature, read_scatter

_getframe = sys._getframe

_CPU_SUFFIXES = (process_groups.CPU_SUFFIX, ":cpu")
"""Ends of the labels of the groups that the unique id is sent on: ours, and SGLang's."""

_CALLER = 2
"""Frames from a ``before`` hook to the caller of the function that it guards."""


class PyNcclProbe(Patch):
    """Records every method of ``PyNcclCommunicator`` that enqueues work, before it does.

    A v-collective is one record, although NCCL gets a group of broadcasts or reductions.
    Calls on a disabled communicator are not recorded, since they enqueue nothing.
    """

    name = "pynccl"
    target = "vllm.distributed.device_communicators.pynccl"

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Patch] = []
        """Patches of single methods."""

    def revert(self) -> None:
        while self.parts:
            self.parts.pop().revert()
        super().revert()

    def install(self, module: Any) -> None:
        cls = module.PyNcclCommunicator
        for name, reader in READERS.items():
            found = self._reader_for(cls, name, reader)
            if found is not None:
                patch, read = found
                where = _where(cls, name, module)
                put_posting(patch, cls, name, read, handles, can_be_off=True, where=where)
        found = self._reader_for(cls, "scatter", read_scatter)
        if found is not None:
            # The sends and receives inside are not calls of the program.
            patch, read = found
            enter = _entering_suppression(read)
            patch.put(cls, "scatter", patch.guard_scope(cls.scatter, enter, scope.resume))
        for name, applies in (("suspend", _can_suspend), ("resume", _is_suspended)):
            put_posting(
                self, cls, name, _plain(name), handles, can_be_off=True, applies=applies,
                where=_where(cls, name, module),
            )  # fmt: skip
        self._number_groups(cls)
        self._declare_before_init(cls, module.NCCLLibrary)

    def watch_connecting(self, library: Any, connect: Before) -> None:
        """Call `connect` before a communicator connects through the library's binding."""
        self.replace(library, "ncclCommInitRank", connect)

    def _reader_for(
        self, cls: Any, name: str, make: Callable[[Signature], Read]
    ) -> tuple[Patch, Read] | None:
        """Return a method's patch and the function that reads its parameters.

        None if the method does not exist or its parameters have changed.
        """
        function = getattr(cls, name, None)
        if function is None:
            return None
        signature = Signature(function, name)
        try:
            read = make(signature)
        except LookupError as error:
            session.warn_once(f"pynccl {name}", f"{name} of pynccl is not recorded: {error}")
            self.note_state(coverage.REFUSED, str(error), name)
            return None
        # A wrapper may pass on other arguments; an error there must not end the other methods.
        return (_Wrapped(self, name) if signature.is_assumed else self), read

    def _number_groups(self, cls: Any) -> None:
        def start(_token: Any, _result: Any) -> None:
            scope.enter_group()

        def enter(_args: Any, _kwargs: Any) -> bool:
            scope.enter_group()
            return True

        def leave(_token: Any) -> None:
            scope.leave_group()
            device_streams.end_group(failed=sys.exc_info()[0] is not None)

        core = native.core()
        if core is None:
            self.replace(cls, "group_start", after=start)
            if hasattr(cls, "group_end"):
                end = self.guard_scope(cls.group_end, lambda args, kwargs: True, leave)
                self.put(cls, "group_end", end)
        else:
            self._put_grouped(core, cls, "group_start", scope.group_numbers)
            self._put_grouped(core, cls, "group_end", None, device_streams.in_groups, _ended)
        if hasattr(cls, "batch_isend_irecv"):
            batch = self.guard_scope(cls.batch_isend_irecv, enter, leave)
            self.put(cls, "batch_isend_irecv", batch)

    def _put_grouped(self, core: Any, cls: Any, name: str, *how: Any) -> None:
        function = getattr(cls, name, None)
        if callable(function) and not self.has_replaced(function):
            replaced = core.grouped(function, self, works.pending, scope.groups, *how)
            self.put(cls, name, functools.update_wrapper(replaced, function))

    def _declare_before_init(self, cls: Any, library: Any) -> None:
        """Record the communicator before NCCL connects, where a rank may hang."""

        def declare(args: tuple[Any, ...], _kwargs: Any) -> None:
            handles.of(args[0])

        if self.replace(cls, "_init_comm", declare):
            return

        # Before 0.32, NCCL connects inside __init__, and only __init__ knows the group.
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
        self.watch_connecting(library, connect)


def _ended(failed: bool) -> None:
    device_streams.end_group(failed=failed)


def _open(comm: Any) -> Handle:
    tracer = session.current()
    unique_id = getattr(comm, "unique_id", None)
    if tracer is None or unique_id is None:
        return NOBODY
    # The unique id, created by rank 0 and sent to all members, identifies the communicator.
    digest = blake2b(bytes(memoryview(unique_id.internal)), digest_size=16).hexdigest()
    group = comm.group
    label = process_groups.label_of(group)
    for suffix in _CPU_SUFFIXES:
        label = label.removesuffix(suffix)
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


class _Wrapped(Patch):
    """Records one method behind a wrapper with unknown parameters.

    Args:
        whole: The probe of all methods, which also reverts this one.
        method: Name of the method.
    """

    target = PyNcclProbe.target

    def __init__(self, whole: PyNcclProbe, method: str) -> None:
        super().__init__()
        self.name = f"{whole.name}.{method}"  # type: ignore[misc]
        self.active = True
        whole.parts.append(self)


def _where(cls: Any, name: str, module: Any) -> device_streams.Where:
    """Return a function that finds a call's stream: the given one, or the current one."""
    function = getattr(cls, name, None)
    names = Signature(function, name).names if callable(function) else []
    at = names.index("stream") if "stream" in names else len(names)
    current = getattr(module, "current_stream", None)
    if current is None:
        current = getattr(module, "get_current_device_stream_fast", None)

    def where(args: tuple[Any, ...], kwargs: dict[str, Any]) -> device_streams.Place | int:
        comm = args[0]
        given = args[at] if len(args) > at else kwargs.get("stream")
        if given is None and current is not None:
            given = current()
        ordinal = comm.device.index
        if given is None or ordinal is None:
            return device_streams.STREAM_UNKNOWN
        stream: int = given.cuda_stream
        return device_streams.checked(handles.of(comm).marks, ordinal, stream)

    return where


def _plain(op: str) -> Read:
    """Return a reader for a call without parameters."""
    parameters = (op,)
    return lambda args, kwargs: parameters


def _entering_suppression(read: Read) -> Before:
    """Return a hook that records a call and suppresses the calls inside it."""

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        comm = args[0]
        handle = handles.of(comm)
        if handle is not NOBODY and not comm.disabled and not scope.is_suppressed():
            record(handle, read(args, kwargs), _getframe(_CALLER))
        return scope.suppress()

    return enter


def _can_suspend(comm: Any) -> bool:
    has_symbol = getattr(comm.nccl, "has_symbol", None)
    return not comm._suspended and (has_symbol is None or has_symbol("ncclCommSuspend"))


def _is_suspended(comm: Any) -> bool:
    return bool(comm._suspended)
