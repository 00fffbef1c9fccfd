"""Note the phases of DistributedDataParallel, whose collectives are posted by C++.

Gradient buckets go from autograd's engine directly to the process group, and so do the broadcasts
of parameters, buffers and bucket sizes. The probes in :mod:`ncclscope_patches.probes.from_cpp`
record them, from the first such module on. Python sees when a phase that posts them begins and
ends. So each ring notes the current phase, and at its end the calls that C++ has waited for.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import weakref
from typing import Any

from ncclscope.ring.activity import Slot
from ncclscope.tracing import callsite, session
from ncclscope.tracing.notes import Phase, leave
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.from_cpp.dispatcher import record_from_now, waiting
from ncclscope_patches.probes.noting import put_noting
from ncclscope_patches.probes.probe import Note
from ncclscope_patches.probes.recording import NOBODY

_CALLER = 2
"""Frames from a hook to the caller of the function that it guards."""


class DdpNote(Note):
    """Notes modules on groups of two ranks or more, and their phases.

    The phases are activities: ``ddp_init`` (the constructor, which compares and broadcasts
    parameters), ``ddp_forward`` (before and after the program's forward, where buffers and bucket
    sizes are broadcast), ``ddp_backward`` (the whole of autograd's engine, including the backward
    of other models while a DDP module exists), ``ddp_join`` (a rank without inputs joins the
    others' collectives). The detail of each is the line of the program.
    """

    name = "ddp"
    target = "torch.nn.parallel.distributed"

    def __init__(self) -> None:
        super().__init__()
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._slots: dict[str, Slot] = {}
        self._in_backward = False
        self._watches_backward = False
        session.on_reset(self._forget)

    def install(self, module: Any) -> None:
        cls = module.DistributedDataParallel
        self._find_group = _group_finder(cls)
        code = getattr(inspect.unwrap(cls.__init__), "__code__", None)
        self._uses_dynamo = "_dynamo" in getattr(code, "co_names", ())
        made = self.guard_scope(waiting(cls.__init__), self._enter_init, leave)
        self.put(cls, "__init__", self.guard(made, after=self._keep))
        for name in ("_pre_forward", "_post_forward"):
            put_noting(self, cls, name, "ddp_forward", self._forward, waiting)
        hook = getattr(module, "_DDPJoinHook", None)
        for name in ("main_hook", "post_hook"):
            put_noting(self, hook, name, "ddp_join", self._join, waiting)
        self.replace(cls, "__setstate__", after=self._keep)

    def _enter_init(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Phase | None:
        if not self._record(self._find_group(args, kwargs)):
            return None
        if self._uses_dynamo:
            # The constructor imports it first, which takes a minute on a slow disk, and no rank
            # waits for another one meanwhile. If it cannot be imported, the constructor raises.
            with contextlib.suppress(Exception):
                importlib.import_module("torch._dynamo.utils")
        return self._begin("ddp_init")

    def _keep(self, token: Any, _result: Any) -> None:
        owned = token[0][0]
        if self._record(owned.process_group):
            self._modules.add(owned)

    def _record(self, group: Any) -> bool:
        """Record what C++ posts from now on; return False if no other rank waits for it."""
        handle = process_groups.handles.of(group)
        if handle is NOBODY or handle.comm is None:
            return False
        text = "gradient buckets of DistributedDataParallel are posted by C++"
        record_from_now("ddp", text, group, sums=True)
        self._watch_backward()
        return True

    def _watch_backward(self) -> None:
        """Guard autograd's engine, only once the program has a DDP module."""
        if not self._watches_backward:
            self._watches_backward = True
            autograd = sys.modules["torch"].autograd
            name = "_engine_run_backward"
            run = self.guard_scope(
                getattr(autograd, name), self._enter_backward, self._leave_backward
            )
            self.put(autograd, name, run)

    def _enter_backward(self, _args: Any, _kwargs: Any) -> Phase | None:
        # A checkpoint runs a nested backward; only the outer one counts.
        if self._in_backward or not self._modules:
            return None
        phase = self._begin("ddp_backward")
        self._in_backward = phase is not None
        return phase

    def _leave_backward(self, phase: Phase) -> None:
        self._in_backward = False
        leave(phase)

    def _begin(self, name: str) -> Phase | None:
        slot = self._slots.get(name)
        if slot is None:
            tracer = session.current()
            if tracer is None:
                return None
            slot = self._slots[name] = tracer.activity(name)
        return slot, slot.begin(_line(_CALLER + 1))

    def _forward(self, args: tuple[Any, ...], _kwargs: Any) -> tuple[str | None, int] | None:
        return (_line(_CALLER), 0) if args[0] in self._modules else None

    def _join(self, args: tuple[Any, ...], _kwargs: Any) -> tuple[str | None, int] | None:
        return (_line(_CALLER), 0) if args[0].ddp in self._modules else None

    def _forget(self) -> None:
        """Forget the parent's modules, in the child after a fork."""
        self._modules.clear()
        self._slots.clear()
        self._in_backward = False


def _line(depth: int) -> str | None:
    """Return the line of the program that called a guarded function, from within a hook."""
    return callsite.user_line(sys._getframe(depth + 1))


def _group_finder(cls: Any) -> Any:
    """Return a function that finds the process group in the constructor's arguments."""
    names = list(inspect.signature(cls.__init__).parameters)

    def given(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        at = names.index(name) if name in names else len(args)
        return args[at] if at < len(args) else kwargs.get(name)

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        group, mesh = given("process_group", args, kwargs), given("device_mesh", args, kwargs)
        if group is not None:
            return group
        if mesh is not None:
            return mesh.get_group(mesh_dim=0)
        return process_groups.c10d()._get_default_group()

    return find
