"""Note the line of the program that runs a backward.

Autograd runs it for each GPU on a thread of C++. Collectives that are posted there, by hooks or by
C++ itself, have no frame of the program above them. Their call site is the line of the backward.
"""

from __future__ import annotations

import sys
from typing import Any

from ncclscope import native
from ncclscope.tracing import callsite, session
from ncclscope_patches.probes.probe import Note

_CALLER = 2
"""Frames from a hook to the caller of the function that it guards."""

_note: BackwardNote | None = None


def watch() -> None:
    """Note each backward from now on."""
    if _note is not None and _note.active:
        _note.watch()


class BackwardNote(Note):
    """Guards autograd's engine, once a collective may be posted from its threads."""

    name = "backward"
    target = "torch.autograd"

    def install(self, module: Any) -> None:
        global _note
        _note = self
        self._autograd = module
        self._watches = False
        session.on_reset(_leave)

    def watch(self) -> None:
        """Guard backward() and grad(), which both look the engine up there."""
        if not self._watches:
            self._watches = True
            run = self.guard_scope(self._autograd._engine_run_backward, _enter, _leave)
            self.put(self._autograd, "_engine_run_backward", run)


def _enter(_args: Any, _kwargs: Any) -> bool | None:
    if callsite.elsewhere is not None:
        return None  # a checkpoint runs a nested backward
    callsite.elsewhere = callsite.locate(sys._getframe(_CALLER))
    core = native.core()
    if core is not None:
        core.elsewhere(True)
    return True


def _leave(_token: Any = None) -> None:
    callsite.elsewhere = None
    core = native.core()
    if core is not None:
        core.elsewhere(False)
