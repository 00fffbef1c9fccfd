"""Asks for a verdict on an input, and says what is wrong with the answer."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import traceback
from dataclasses import dataclass
from pathlib import Path

from ncclscope.analysis.verdict import Verdict, diagnose
from ncclscope.errors import NcclscopeError
from ncclscope.readers import open_run
from tests.fuzz.specimens import Specimen

__all__ = ["FAILURES", "Answer", "judge"]

FAILURES = frozenset({"error", "killed", "too slow", "blames", "false OK"})
CHECKED = frozenset({"rings"})
"""Formats whose calls are signed; in the others nothing tells that a letter was changed."""
MEMORY = 200 << 20
"""What an input may take besides eight times its size."""


@dataclass(frozen=True)
class Answer:
    """What came of an input: one of :data:`FAILURES`, ``refused``, or how the verdict was."""

    kind: str
    text: str = ""


def judge(specimen: Specimen, directory: Path) -> Answer:
    """Ask in a process of its own, which may die, and within a budget."""
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _limit(size)
        answer = _answer(specimen, directory)
        os.write(writer, pickle.dumps((answer.kind, answer.text[:2000])))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not said:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        kind = "too slow" if number in (signal.SIGPROF, signal.SIGALRM) else "killed"
        return Answer(kind, f"signal {number}")
    return Answer(*pickle.loads(said))


def _limit(size: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY + 8 * size
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    seconds = 5 + size // (10 << 20) + 1
    # Beside a busy machine's other programs; what sleeps for ever is ended, too.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)


def _answer(specimen: Specimen, directory: Path) -> Answer:
    try:
        verdict = diagnose(open_run(directory))
    except NcclscopeError as error:
        one_line = "\n" not in str(error)
        return Answer("refused") if one_line else Answer("error", f"several lines: {error}")
    except BaseException:
        return Answer("error", traceback.format_exc())
    return _judge(specimen, verdict)


def _judge(specimen: Specimen, verdict: Verdict) -> Answer:
    cause = verdict.cause
    named = cause is not None and cause.diverging_ranks
    if specimen.healthy and specimen.format in CHECKED and cause is not None and named:
        return Answer("blames", f"{cause.kind} {cause.diverging_ranks}: {cause.summary}")
    told = verdict.run.notes or not verdict.coverage.complete
    if not specimen.healthy and verdict.status == "ok" and not told:
        return Answer("false OK", verdict.summary)
    return Answer(verdict.status)
