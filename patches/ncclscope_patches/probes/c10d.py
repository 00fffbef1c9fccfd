"""Record a program's calls through torch.distributed, on any backend.

The probe replaces methods of ``ProcessGroup``, not functions of ``torch.distributed``. Every
function ends there, including those that were imported by name before. And Dynamo, which knows
the functions by identity, still recognises them.

Calls are recorded as they are enqueued: ``all_gather_object`` as the calls that it consists of, a
coalescing manager as one call with the sum of its tensors' ``numel``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import ref

from ncclscope import native
from ncclscope.model.signature import BARRIERS
from ncclscope.tracing import callsite, coverage, scope
from ncclscope_patches.probes import device_streams, group_creation, process_groups, works
from ncclscope_patches.probes.posted_calls import NOTING, READERS, REDOP_OPTIONS, note_redop, on_cpu
from ncclscope_patches.probes.posting import put_posting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import COMPLETED, Handle
from ncclscope_patches.probes.works import Posted

_HELPER = (
    *("group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name"),
)
"""The parameters of torch's group creation that all supported versions have."""


class C10dProbe(Patch):
    """Records the calls on process groups, and their completion if it is known.

    Completion is known when ``Work.wait()`` returns on a blocking backend (gloo), or when
    ``Work.is_completed()`` is true. Waiting on NCCL only orders streams and proves nothing.
    """

    name = "c10d"
    target = "torch.distributed.distributed_c10d"

    def install(self, module: Any) -> None:
        group = module.ProcessGroup
        for name, read in READERS.items():
            after = _came_back if name in BARRIERS else _returned
            put_posting(
                self, group, name, read, process_groups.handles, after=after,
                where=_where, returns_none=True, keeps_work=after is _returned,
            )  # fmt: skip
        self._watch_waiting(module.Work)
        self.replace(module.Work, "is_completed", _find_work, _asked)
        for name in REDOP_OPTIONS:
            if hasattr(module, name):
                self.watch_property(getattr(module, name), "reduceOp", note_redop, NOTING)
        self._number_groups(group)
        self._declare_groups(module)
        self._declare_earlier(module)

    def _watch_waiting(self, work: Any) -> None:
        wait = work.wait
        if self.has_replaced(wait):
            return

        pending = works.pending

        # Without guard() or other functions, for speed: a program waits for each call.
        def waited(self_: Any, *args: Any, **kwargs: Any) -> Any:
            result = wait(self_, *args, **kwargs)
            if self.active:
                try:
                    entry = pending.get(id(self_))
                    if entry is not None:
                        reference, (handle, position, waits) = entry
                        if waits and reference() is self_:
                            handle.ring.advance(position, COMPLETED)
                            pending.pop(id(self_), None)
                except Exception as error:
                    self.fail(error)
            return result

        core = native.core()
        own: Any = waited if core is None else core.waited(wait, self, pending)
        self.put(work, "wait", functools.update_wrapper(own, wait))

    def _number_groups(self, group: Any) -> None:
        def start(_token: Any, _result: Any) -> None:
            scope.enter_group()

        def leave(_token: Any) -> None:
            scope.leave_group()

        self.replace(group, "_start_coalescing", after=start)
        if hasattr(group, "_end_coalescing"):
            end = self.guard_scope(group._end_coalescing, lambda args, kwargs: True, leave)
            self.put(group, "_end_coalescing", end)

    def _declare_earlier(self, module: Any) -> None:
        """Note the groups on which calls may have been enqueued before this probe was installed."""
        found = map(process_groups.handles.of, list(module._world.pg_map))
        keys = [handle.comm.key for handle in found if handle.comm is not None]
        if keys:
            coverage.unseen("late", "process groups were created before recording started", keys)

    def _declare_groups(self, module: Any) -> None:
        """Record each new group, so that a rank without calls on it is known as a member."""
        helper = module._new_process_group_helper

        def new_group(token: Any, result: Any) -> None:
            size, rank, ranks, is_world, creation, timeout = token
            if creation is not None:
                group_creation.end(creation)
            group = result[0]
            if not isinstance(group, module.ProcessGroup):
                return  # this process is not a member
            created_at = callsite.user_place(sys._getframe(1))
            if is_world:
                process_groups.join_world(rank, size)
            members = range(size) if is_world else ranks
            process_groups.declare(group, members, created_at, timeout)

        def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = {**dict(zip(_HELPER, args, strict=False)), **kwargs}
            size, rank, ranks = (given[name] for name in _HELPER[:3])
            creation = None
            if is_world := not ranks and _makes_world():
                process_groups.begin_world()
            # Functional collectives create a group with a tag on its members only.
            if ranks and not given.get("pg_tag"):
                parent, name = module._world.default_pg, given["group_name"]
                creation = group_creation.begin(parent, name, ranks, given["backend"])
            limit = given.get("timeout")
            seconds = 0 if limit is None else int(limit.total_seconds())
            return size, rank, ranks, is_world, creation, seconds

        self.put(module, "_new_process_group_helper", self.guard(helper, arguments, new_group))


def _makes_world() -> bool:
    """Return whether torch makes the default group now.

    RL frameworks make a group without ranks, too, of a trainer and the workers of other worlds.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "init_process_group":
        frame = frame.f_back
    return frame is not None


def _where(args: tuple[Any, ...], kwargs: dict[str, Any]) -> device_streams.Place | int:
    """Return the place of a call that returns no ``Work``: the current stream."""
    for argument in (*args[1:], *kwargs.values()):
        while isinstance(argument, (list, tuple)) and argument:
            argument = argument[0]
        if hasattr(argument, "get_device"):
            return device_streams.of_tensor(argument)
    # A barrier without Work blocks its caller until it has completed, on any device.
    options = args[1] if len(args) > 1 else kwargs.get("opts")
    device = getattr(options, "device", None) or getattr(args[0], "bound_device_id", None)
    cuda = sys.modules["torch"].cuda
    if device is not None and device.type != "cuda":
        return device_streams.STREAM_UNKNOWN
    if not cuda.is_initialized():
        return device_streams.NOWHERE_YET
    index = None if device is None else device.index
    ordinal = cuda.current_device() if index is None else index
    return ordinal, device_streams.current_stream(ordinal)


def _returned(handle: Handle, position: int, args: tuple[Any, ...], work: Any) -> None:
    waits = handle.waits
    if waits is None:
        waits = on_cpu(args)
    if work is None or len(works.pending) >= works.LIMIT:
        works.expect((handle, position, waits), work)
    else:
        works.pending[id(work)] = ref(work), (handle, position, waits)


def _came_back(handle: Handle, position: int, _args: Any, work: Any) -> None:
    works.expect((handle, position, True), work)


def _find_work(args: tuple[Any, ...], _kwargs: Any) -> tuple[Posted, Any] | None:
    posted = works.find(args[0])
    return None if posted is None else (posted, args[0])


def _asked(token: tuple[Posted, Any], result: Any) -> None:
    posted, work = token
    if result and _succeeded(work):
        works.settle(posted, work)


def _succeeded(work: Any) -> bool:
    is_success: Callable[[], bool] = work.is_success
    try:
        return is_success()
    except RuntimeError:  # NCCL no longer answers; a failed call ends the process there
        return True
