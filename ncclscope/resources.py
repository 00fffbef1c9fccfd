"""Process settings for commands that read, compare and exit."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable the garbage collector, which would scan large live data again and again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def economy() -> Iterator[None]:
    """Raise the limit of open files, disable the garbage collector, and avoid idle threads.

    A ring stays open while its run is in use, and a job may have more rings than the usual limit
    of 1024 files. OpenBLAS starts one busy-waiting thread per processor when numpy is imported.
    Child processes would inherit that setting, so use this only in commands that start none.
    """
    before = os.environ.get(_BLAS_THREADS)
    os.environ.setdefault(_BLAS_THREADS, "1")
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        with without_collection():
            yield
    finally:
        if before is None:
            os.environ.pop(_BLAS_THREADS, None)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


def run_for_text(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program without input and return what it printed, whatever its status.

    Args:
        command: The program and its arguments.
        seconds: Longest time to wait for it.
        environment: Its environment; ours by default.

    Raises:
        OSError: It cannot be run.
        subprocess.TimeoutExpired: It took longer, and was killed.
    """
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )
