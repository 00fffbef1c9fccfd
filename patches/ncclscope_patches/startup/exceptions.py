"""Note exceptions that leave a call or a thread, and those that the program catches and reports.

An exception that is caught in silence is not seen: to see it would cost every ``raise``.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ncclscope.tracing.exceptions import note_here, note_traced
from ncclscope_patches.probes.probe import Note
from ncclscope_patches.startup.timeouts import explain_timeout


class _ErrorNote(Note):
    supports = "Python 3.10 or later"


class MainErrorNote(_ErrorNote):
    """Notes an exception that ends the main thread: other threads may keep the process alive."""

    name = "sys_excepthook"
    target = "sys"

    def install(self, module: Any) -> None:
        self.replace(module, "excepthook", _main_ended)


class ThreadErrorNote(_ErrorNote):
    """Notes an exception that ends a thread: the process goes on without it."""

    name = "threading_excepthook"
    target = "threading"

    def install(self, module: Any) -> None:
        self.replace(module, "excepthook", _thread_ended)


class C10dErrorNote(_ErrorNote):
    """Notes exceptions of torch.distributed's functions, before a call is posted, too.

    torch describes a call that failed for its own log, and only then.
    """

    name = "c10d_errors"
    target = "torch.distributed.c10d_logger"

    def install(self, module: Any) -> None:
        self.replace(module, "_get_msg_dict", _failed)


class LoggedErrorNote(_ErrorNote):
    """Notes exceptions that the program catches and logs with ``logger.exception``."""

    name = "logged_errors"
    target = "logging"

    def install(self, module: Any) -> None:
        log = module.Logger.exception

        def exception(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if self.active:
                _caught((), {})
            # logging reports the line of its caller, which is not this one.
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            return log(self_, *args, **kwargs)

        self.put(module.Logger, "exception", functools.update_wrapper(exception, log))


class PrintedErrorNote(_ErrorNote):
    """Notes exceptions that the program catches and prints by ``traceback``."""

    name = "printed_errors"
    target = "traceback"

    def install(self, module: Any) -> None:
        for name in ("format_exc", "print_exc"):
            self.replace(module, name, _caught)


def _main_ended(args: tuple[Any, ...], _kwargs: Any) -> None:
    note_traced(args[0], args[2], ended=True)
    explain_timeout(args[1])


def _thread_ended(args: tuple[Any, ...], _kwargs: Any) -> None:
    note_traced(args[0].exc_type, args[0].exc_traceback, ended=True)
    explain_timeout(args[0].exc_value)


def _failed(_args: Any, _kwargs: Any) -> None:
    error = sys.exc_info()[1]
    if error is not None:
        note_here(error)
        explain_timeout(error)


def _caught(_args: Any, _kwargs: Any) -> None:
    kind, _, trace = sys.exc_info()
    if kind is not None:
        note_traced(kind, trace)
