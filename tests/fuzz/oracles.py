"""What an answer must not be, whatever the input was."""

from __future__ import annotations

import json
import os
import resource
import signal
import traceback
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rich.console import RenderableType

from ncclscope.engine import verdict as verdicts
from ncclscope.engine.registry import load_analyzers
from ncclscope.engine.verdict import Verdict
from ncclscope.errors import DamagedFileError, NcclscopeError
from ncclscope.model import Run
from ncclscope.render.console.attach import render_attach
from ncclscope.render.console.terminal import plain_text
from ncclscope.render.console.verdict import render_verdict
from tests.fuzz.inputs import Answer, Input
from tests.fuzz.jobs import calls_of, invented

__all__ = [
    "answer_of",
    "limit_space",
    "load_analyzers_once",
    "shows_controls",
    "verdict_of",
    "within_budget",
]

MEMORY = 200 << 20
"""Bytes that an input may take besides eight times its size."""
SECONDS = 5.0
"""Processor time that an input may take besides a second for each 10 MB."""
SPACE = 4 * MEMORY
"""Bytes of address space that a judging process gets: memory that is refused is none taken."""
RENDERED = 16
"""One input in this many is also shown on a screen."""
_WIDTH = 100


def limit_space() -> None:
    """Keep this process from taking so much memory that the machine has none left."""
    room = _pages(0) + SPACE
    resource.setrlimit(resource.RLIMIT_AS, (room, room))


def within_budget(judge: Callable[[Input, int], Answer], given: Input, seed: int) -> Answer:
    """Judge an input; one that takes too much processor time ends the process with SIGPROF."""
    held, before = _pages(1), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, SECONDS + given.size / (10 << 20))
    try:
        answer = answer_of(judge, given, seed)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if most > before and (taken := (most << 10) - held) > MEMORY + 8 * given.size:
        return Answer("too much memory", f"{taken >> 20} MB for {given.size} bytes")
    return answer


def answer_of(judge: Callable[[Input, int], Answer], given: Input, seed: int) -> Answer:
    """Judge an input; only the errors that users see may come out of it."""
    try:
        return judge(given, seed)
    except NcclscopeError as error:
        if len(str(error).splitlines()) > 1:
            return Answer("error", f"several lines: {error}")
        if error.exit_status != 2:
            return Answer("error", f"status {error.exit_status}: {error}")
        return Answer("refused")
    except BaseException:
        return Answer("error", traceback.format_exc())


def load_analyzers_once() -> None:
    """Keep this process from looking for analyzers again for each input.

    Reading the metadata of all installed packages takes as long as comparing a small job.
    """
    verdicts.load_analyzers = lru_cache(load_analyzers)  # type: ignore[attr-defined]


def verdict_of(given: Input, run: Run, seed: int) -> Answer:
    """Compare the ranks of a run, and judge the verdict."""
    verdict = verdicts.diagnose(run)
    json.dumps(verdict.to_dict()).encode()
    if not seed % RENDERED and (shown := _control_bytes(verdict)):
        return Answer("control byte", shown)
    return judge_verdict(given, verdict)


def judge_verdict(given: Input, verdict: Verdict) -> Answer:
    """Compare a verdict with what is known of the base."""
    base = given.base
    if base.calls is None or given.forged:
        return Answer(verdict.status)
    cause = verdict.cause
    if base.healthy and cause is not None and cause.diverging_ranks:
        return Answer("blames", f"{cause.kind} {cause.diverging_ranks}: {cause.summary}")
    reported = verdict.run.notes or not verdict.coverage.complete
    if not base.healthy and verdict.status == "ok" and not reported:
        return Answer("false OK", verdict.summary)
    try:
        shown = calls_of(verdict.run)
    except DamagedFileError:
        return Answer(verdict.status)  # what cannot be read is not shown
    if unknown := invented(shown - base.calls, base.calls):
        return Answer("invented call", repr(sorted(unknown, key=repr)[:2]))
    return Answer(verdict.status)


def _control_bytes(verdict: Verdict) -> str:
    """Return the first character on the screen that a terminal would act on; usually none."""
    screen = render_attach if verdict.run.snapshot is not None else render_verdict
    return shows_controls(screen(verdict, _WIDTH))


def shows_controls(shown: RenderableType) -> str:
    """Return the first character of a screen that a terminal would act on; usually none."""
    text = plain_text(shown, _WIDTH).replace("\n", "")
    return next((repr(letter) for letter in text if not letter.isprintable()), "")


def _pages(field: int) -> int:
    """Return this process's address space (0) or resident memory (1) in bytes."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(64).split()[field]) * os.sysconf("SC_PAGE_SIZE")


def printable_texts(value: Any) -> str:
    """Return the first text of a JSON document that a terminal would act on; usually none."""
    if isinstance(value, str):
        return "" if value.isprintable() else repr(value[:200])
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return next((found for item in value if (found := printable_texts(item))), "")
    return ""
