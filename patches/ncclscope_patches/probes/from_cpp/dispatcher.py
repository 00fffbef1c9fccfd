"""Record what C++ posts, at torch's dispatcher.

Every collective of torch, whoever posts it, is an operator of ``torch.ops.c10d``: the gradient
buckets and broadcasts of DistributedDataParallel, the collectives of graphs with a C++ wrapper,
the backward of functional collectives. A kernel at ``BackendSelect`` runs directly before the
backend's own, whatever the device, also in inference mode, and after all tracers and modes. It
records the call and passes it on.

The kernel costs twice as much as the patched methods of :mod:`ncclscope_patches.probes.c10d`, which
also know the ``Work`` that the program waits for. So it is installed only when the program begins
to use something that posts from C++, and it leaves out calls that another probe has announced.
For DistributedDataParallel, a hook of the group replaces it where torch has such hooks.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from ncclscope import native
from ncclscope.tracing import coverage, scope, session
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.from_cpp import backward
from ncclscope_patches.probes.from_cpp.group_hooks import GroupHooks
from ncclscope_patches.probes.operators import is_plain, plain_types
from ncclscope_patches.probes.posted_calls import READERS, first_tensor
from ncclscope_patches.probes.posting import ALWAYS_SUM, Read
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import (
    NOBODY,
    Handle,
    planned,
    record,
    recorder,
    redop_name,
)

_GROUP, _REDUCTION = "process_group", "reduce_op"

_getframe, _get_ident = sys._getframe, threading.get_ident
_probe: DispatcherProbe | None = None
_lock = threading.Lock()

_phases: dict[int, list[tuple[Handle, int]]] = {}
"""Calls that were posted in the open phase, by thread identity."""
session.on_reset(_phases.clear)


def record_from_now(kind: str, text: str, group: Any = None, *, sums: bool = False) -> None:
    """Record from now on what C++ posts, or note that it is not recorded.

    Args:
        kind: What the program begins to use; see :func:`coverage.unseen`.
        text: One sentence for the user.
        group: The process group concerned; None if unknown.
        sums: Whether C++ posts no reduction but sums, and no uneven splits.
    """
    comm = None if group is None else process_groups.handles.of(group).comm
    if group is not None and comm is None:
        return  # no other rank waits for this one
    if _probe is None or not _probe.listen(group, sums=sums):
        coverage.unseen(kind, text, () if comm is None else (comm.key,))


def reads_reductions() -> bool:
    """Return whether this version of torch passes the reduction of a call that C++ posts.

    Older ones do not. What the reducer posts there is a sum.
    """
    return bool(sys.modules["torch"].classes.c10d.ReduceOp()._has_method("op"))


def waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records the calls posted in it as completed, unless it raises.

    Args:
        function: A function of torch whose C++ waits for all calls that it has posted.
    """

    def waited(*args: Any, **kwargs: Any) -> Any:
        thread = _get_ident()
        if "dispatcher" not in scope.listeners or thread in _phases:
            return function(*args, **kwargs)
        calls = _phases[thread] = []
        try:
            result = function(*args, **kwargs)
        finally:
            _phases.pop(thread, None)
        for handle, position in calls:
            handle.complete(position)
        return result

    return functools.update_wrapper(waited, function)


class DispatcherProbe(Patch):
    """Records calls that no other probe has announced, once C++ may post some."""

    name = "dispatcher"
    target = "torch.distributed"

    def __init__(self) -> None:
        super().__init__()
        self._library: Any = None
        self._hooks: GroupHooks | None = None
        self._sums_only = True
        self._of_sums: list[Any] = []

    def install(self, module: Any) -> None:
        global _probe
        _probe = self
        for name in ("_broadcast_coalesced", "_verify_params_across_processes"):
            function = getattr(module, name, None)
            if function is not None and not self.has_replaced(function):
                self.put(module, name, self.guard(waiting(function), _begin))

    def revert(self) -> None:
        super().revert()
        scope.listeners.discard(self.name)
        if self._hooks is not None:
            self._hooks.remove()
        if self._library is not None:
            self._library._destroy()
            self._library = None
            self._of_sums.clear()

    def listen(self, group: Any = None, *, sums: bool = False) -> bool:
        """Record calls from now on: by a hook where torch has them and it suffices, or by kernels.

        Args:
            group: As of :func:`record_from_now`.
            sums: As of :func:`record_from_now`. Reading a reduction costs as much as the rest.

        Returns:
            Whether they are recorded.
        """
        with _lock:
            try:
                if self.active and self.name not in scope.listeners:
                    self._watch_backward()
                if self.active and not sums and self._sums_only:
                    self._sums_only = not reads_reductions()
                    for kernel in () if self._sums_only else self._of_sums:
                        kernel.leave()
                if self.active and sums and _has_hooks(group):
                    self._hooks = self._hooks or GroupHooks(self, self._post)
                    self._hooks.add(group)
                elif self.active and self._library is None:
                    self._register()
            except Exception as error:
                self.fail(error)
        return self.active

    def _watch_backward(self) -> None:
        autograd, name = sys.modules["torch"].autograd, "_engine_run_backward"
        self.put(autograd, name, waiting(getattr(autograd, name)))
        backward.watch()
        scope.listeners.add(self.name)

    def _register(self) -> None:
        torch = sys.modules["torch"]
        self._library = torch.library.Library("c10d", "IMPL")
        keys = torch._C.DispatchKey
        after = torch._C._dispatch_keyset_full_after(keys.BackendSelect)
        for method, read in READERS.items():
            for name in (f"{method}_", method):
                operator = getattr(getattr(torch.ops.c10d, name, None), "default", None)
                if operator is not None:
                    names = [argument.name for argument in operator._schema.arguments]
                    kernel = self._kernel(operator.redispatch, after, self._recorder(read, names))
                    kernel = self._in_core(kernel, operator, after, read, names)
                    self._library.impl(name, kernel, "BackendSelect", with_keyset=True)

    def _in_core(
        self, kernel: Callable[..., Any], operator: Any, after: Any, read: Read, names: list[str]
    ) -> Callable[..., Any]:
        """Return a kernel in C, which leaves to the given one the calls that take Python."""
        core, given = native.core(), getattr(read, "plan", None)
        if core is None or given is None:
            return kernel
        op, tensor, redop = given[:3]
        if redop and not self._sums_only:
            return kernel
        method = recorder(
            core,
            process_groups.handles.posts,
            None,
            planned(op, tensor, ALWAYS_SUM if redop else 0),
            plain_types,
            (),
        )
        unbox = sys.modules["torch.distributed"].ProcessGroup.unbox
        redispatch = getattr(operator._handle, "redispatch_boxed", operator.redispatch)
        made: Callable[..., Any] = core.kernel(
            self, kernel, method, unbox, redispatch, after, _phases, names.index(_GROUP)
        )
        if redop:
            self._of_sums.append(made)
        return made

    def _kernel(
        self,
        redispatch: Callable[..., Any],
        after: Any,
        post: Callable[[tuple[Any, ...]], tuple[Handle, int] | None],
    ) -> Callable[..., Any]:
        is_announced, suppressing = scope.is_announced, scope.suppressing
        announce, conclude = scope.announce, scope.conclude

        def enqueue(keys: Any, *args: Any) -> Any:
            posted = None
            if self.active and not is_announced() and _get_ident() not in suppressing:
                try:
                    posted = post(args)
                except Exception as error:
                    self.fail(error)
            if posted is None:
                return redispatch(keys & after, *args)
            announce(posted[0].channel)
            try:
                return redispatch(keys & after, *args)
            except BaseException as error:
                self.raised(*posted, error)
                raise
            finally:
                conclude()

        return enqueue

    def _recorder(
        self, read: Read, names: list[str]
    ) -> Callable[[tuple[Any, ...]], tuple[Handle, int] | None]:
        group_at = names.index(_GROUP)
        redop_at = names.index(_REDUCTION) if _REDUCTION in names else 0
        order = [at for at in range(len(names)) if at != group_at]
        if names[1:4] == [_GROUP, _REDUCTION, "root_rank"]:  # a method has the root first
            order[1:3] = 3, 2
        unbox = sys.modules["torch.distributed"].ProcessGroup.unbox

        def post(args: tuple[Any, ...]) -> tuple[Handle, int] | None:
            tensor = first_tensor(args)
            if tensor is None:
                return None
            values = list(args)
            if redop_at:
                values[redop_at] = self._reduction(args[redop_at])
            # torch leaves out the last arguments if they have their default values.
            values = [values[at] for at in order if at < len(values)]
            return self._post(unbox(args[group_at]), tensor, read((None, *values), {}), _getframe())

        return post

    def _post(
        self, group: Any, tensor: Any, parameters: tuple[Any, ...], frame: Any
    ) -> tuple[Handle, int] | None:
        handle = process_groups.handles.of(group)
        if handle is NOBODY or not is_plain(tensor):
            return None
        position = record(handle, parameters, frame)
        phase = _phases.get(_get_ident())
        if phase is not None and (tensor.is_cpu if handle.waits is None else handle.waits):
            phase.append((handle, position))
        return handle, position

    def _reduction(self, boxed: Any) -> str:
        return "sum" if self._sums_only else redop_name(boxed.op())


def _has_hooks(group: Any) -> bool:
    """Return whether a hook of the group can replace the kernels.

    Only kernels know when a call has been enqueued, which NCCL's profiler plugin has to know.
    """
    if not hasattr(group, "register_pre_hook"):
        return False
    comm = process_groups.handles.of(group).comm
    return "nccl" not in scope.listeners or comm is None or "nccl" not in comm.backend


def _begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    text = "parameters and buffers are broadcast in buckets by C++"
    group = args[0] if args else kwargs["process_group"]
    record_from_now("broadcast_coalesced", text, group, sums=True)
