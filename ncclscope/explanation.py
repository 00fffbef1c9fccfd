"""Ask for a verdict from inside a job, as watchdogs of frameworks do when they fire."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ncclscope import settings
from ncclscope.resources import run_for_text

_MARKER = ".explained"
_AGAIN = 300.0
"""Seconds for which one explanation serves all processes of a job."""
_NO_RINGS = "ncclscope: no verdict: NCCLSCOPE_DIR is not set, so this job is not recorded"


class Explanation(NamedTuple):
    """The verdict on a job.

    Attributes:
        text: What ``ncclscope watch --once`` prints, or one line that says why there is nothing.
        document: The JSON verdict; empty if there is none.
    """

    text: str
    document: Mapping[str, Any]

    def __str__(self) -> str:
        return self.text


def explain(
    directory: str | os.PathLike[str] | None = None, *, seconds: float = 3.0
) -> Explanation:
    """Return the verdict on the job of this process, from its rings.

    Another process reads the rings. So this function neither imports anything nor waits for a
    lock, never raises, and returns in time.

    Args:
        directory: Directory of the rings; by default the one that this process records in.
        seconds: Longest time to wait.
    """
    try:
        where = os.fspath(directory) if directory is not None else settings.directory()
        if not where:
            return Explanation(_NO_RINGS, {})
        done = run_for_text(_command(where, "--json"), seconds, _environment())
        found = json.loads(done.stdout)
        return Explanation(found["text"], found["document"])
    except subprocess.TimeoutExpired:
        why = f"not within {seconds:g} s"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    return Explanation(f"ncclscope: no verdict: {why}; try ncclscope attach", {})


def explain_to(descriptor: int, directory: str | os.PathLike[str]) -> bool:
    """Have the verdict on a job printed, by a process that outlives this one.

    Args:
        descriptor: Where it is printed, such as 2.
        directory: Directory of the rings.

    Returns:
        Whether it will be: one process of a job asks for it, and not again for five minutes.
    """
    with contextlib.suppress(OSError, ValueError):
        if _claim(Path(directory, _MARKER)):
            started = subprocess.Popen(
                _command(os.fspath(directory)),
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            started.returncode = 0  # nobody waits for it, which Popen would warn of
            return True
    return False


def _claim(marker: Path) -> bool:
    """Return whether this process is the first to explain the job."""
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if time.time() - marker.lstat().st_mtime < _AGAIN:
            return False
        os.utime(marker, follow_symlinks=False)
    return True


def _command(directory: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "ncclscope.commands.explanation", directory, *options]


def _environment() -> dict[str, str]:
    """Return our environment, under which a Python process is not traced."""
    return {**os.environ, "NCCLSCOPE": "0"}
