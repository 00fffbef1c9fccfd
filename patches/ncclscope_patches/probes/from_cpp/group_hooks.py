"""Record what the reducer posts, by a hook of its process group: torch 2.15 and later.

Such a hook costs a fifth of a kernel at the dispatcher, and only calls on that group pay it. It
does not know reductions, peers and splits. So it serves what torch posts without them, or only as
sums: the reducer of DistributedDataParallel, and broadcasts of parameters and buffers.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ncclscope.tracing import coverage, scope
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.posted_calls import READERS
from ncclscope_patches.probes.probe import Patch

_ID = 0x6E63636C
"""Number of our hook among those of a group."""

Post = Callable[[Any, Any, tuple[Any, ...], Any], object]
"""Record a call: its group, its first tensor, its parameters, and the innermost frame."""

_getframe, _get_ident = sys._getframe, threading.get_ident


class GroupHooks:
    """The hooks of a process on its groups.

    Args:
        patch: The patch; an error in recording ends it, but not the call.
        post: Records a call.
    """

    def __init__(self, patch: Patch, post: Post) -> None:
        self._patch = patch
        self._post = post
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()
        # A hook must not be freed after the interpreter, as the groups of some programs are.
        atexit.register(self.remove)

    def add(self, group: Any) -> None:
        """Record what C++ posts on a group from now on."""
        if group not in self._groups:
            self._groups.add(group)
            group.register_pre_hook(_ID, self._hook(weakref.ref(group)))

    def remove(self) -> None:
        """Remove all hooks."""
        for group in list(self._groups):
            group.unregister_pre_hook(_ID)
        self._groups.clear()

    def _hook(self, reference: weakref.ref[Any]) -> Callable[[Any], None]:
        is_announced, suppressing, patch = scope.is_announced, scope.suppressing, self._patch

        def posted(call: Any) -> None:
            if not patch.active:
                return
            try:
                if not is_announced() and _get_ident() not in suppressing:
                    group, name, tensors = reference(), call.name.name, call.input_tensors
                    if name in _NAMES and tensors:
                        self._post(group, tensors[0], _parameters(name, call), _getframe())
                    else:
                        _note(name, group)
            except Exception as error:
                patch.fail(error)

        return posted


_NAMES = frozenset({"ALLGATHER", "ALLREDUCE", "BROADCAST"})


def _parameters(name: str, call: Any) -> tuple[Any, ...]:
    tensors = call.input_tensors
    if name == "ALLREDUCE":
        return READERS["allreduce"]((None, tensors, "sum"), {})
    if name == "BROADCAST":
        return READERS["broadcast"]((None, tensors, call.root), {})
    return READERS["allgather"]((None, [call.output_tensors], tensors), {})


def _note(name: str, group: Any) -> None:
    """Note a call that torch itself never posts here from C++."""
    comm = process_groups.handles.of(group).comm
    if comm is not None:
        coverage.unseen(f"cpp {name}", f"{name} is posted by an extension in C++", [comm.key])
