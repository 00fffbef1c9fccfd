"""Note exceptions that end a thread, and those that a vLLM worker sends to its engine."""

from __future__ import annotations

from typing import Any

from ncclscope.tracing.exceptions import note_uncaught
from ncclscope_patches.probes.probe import Patch

__all__ = ["MainExceptionNote", "ThreadExceptionNote", "WorkerExceptionNote"]


class MainExceptionNote(Patch):
    """Notes an exception that ends the main thread: other threads may keep the process alive."""

    name = "sys_excepthook"
    target = "sys"
    supports = "Python 3.10 or later"
    records = False

    def install(self, module: Any) -> None:
        self.replace(module, "excepthook", lambda args, kwargs: note_uncaught(args[0], args[2]))


class ThreadExceptionNote(Patch):
    """Notes an exception that ends a thread: the process goes on without it."""

    name = "threading_excepthook"
    target = "threading"
    supports = "Python 3.10 or later"
    records = False

    def install(self, module: Any) -> None:
        self.replace(module, "excepthook", _thread_ended)


class WorkerExceptionNote(Patch):
    """Notes an exception that a vLLM worker catches, reports to its engine, and goes on after."""

    name = "vllm_worker_exception"
    target = "vllm.v1.executor.multiproc_executor"
    supports = "vllm 0.26 to 0.32"
    records = False

    def install(self, module: Any) -> None:
        for name in ("handle_output", "enqueue_output"):
            if self.replace(module.WorkerProc, name, _reported):
                return


def _thread_ended(args: tuple[Any, ...], _kwargs: Any) -> None:
    note_uncaught(args[0].exc_type, args[0].exc_traceback)


def _reported(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    output = args[1] if len(args) > 1 else kwargs.get("output")
    if isinstance(output, BaseException):
        note_uncaught(type(output), output.__traceback__)
