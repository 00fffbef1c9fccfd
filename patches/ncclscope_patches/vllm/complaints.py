"""Explain vLLM's complaints in its own log.

vLLM says that a broadcast found no free block, that a call timed out, or that an engine is dead,
and not why. The rings often hold the reason. So the first such message of a job is followed by
the verdict, which a process of its own prints.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

from ncclscope import settings
from ncclscope.explanation import explain_to
from ncclscope.model.activities import WORKER_DIED
from ncclscope.tracing.notes import Notes
from ncclscope_patches.probes.probe import Note, Patch

_DIED = "died unexpectedly"
_MESSAGES = (
    "No available shared memory broadcast block found",
    "timed out",
    _DIED,
    "encountered a fatal error",
)
_EXCEPTIONS = frozenset({"EngineDeadError", "TimeoutError"})


_WORKER = re.compile(r"VllmWorker-(\d+)$")
_deaths = Notes(WORKER_DIED)


class VllmComplaints(Note):
    """Prints the verdict after vLLM's first complaint about a hang."""

    name = "vllm_complaints"
    target = "vllm.logger"

    def __init__(self) -> None:
        super().__init__()
        self._listener = _Listener(self)

    def install(self, module: Any) -> None:
        self._listen()
        # Later releases configure their logger again, which removes all of its handlers.
        self.replace(module, "_configure_vllm_root_logger", after=lambda *_: self._listen())

    def _listen(self) -> None:
        logging.getLogger("vllm").addHandler(self._listener)

    def revert(self) -> None:
        super().revert()
        logging.getLogger("vllm").removeHandler(self._listener)


class _Listener(logging.Handler):
    def __init__(self, patch: Patch) -> None:
        super().__init__(logging.INFO)
        self._patch = patch

    def emit(self, record: logging.LogRecord) -> None:
        """Start the process that prints the verdict, if the message is a complaint."""
        if not self._patch.active:
            return
        try:
            where = settings.directory()
            if where and _DIED in str(record.msg):
                _note_death(record)
            if where and _is_complaint(record):
                explain_to(sys.__stderr__.fileno() if sys.__stderr__ else 2, where)
        except Exception as error:
            self._patch.fail(error)


def _note_death(record: logging.LogRecord) -> None:
    """Note which worker ended, which the engine knows before it ends the others."""
    name, *status = record.args if isinstance(record.args, tuple) and record.args else ("",)
    found = _WORKER.match(str(name))
    if found is not None:
        text = f"{name}, exit status {status[0]}" if status else str(name)
        _deaths.note(text, str(name), 1 + int(found[1]))


def _is_complaint(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    if kind is not None and kind.__name__ in _EXCEPTIONS:
        return True
    return any(message in str(record.msg) for message in _MESSAGES)
