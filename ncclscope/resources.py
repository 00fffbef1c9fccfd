"""Process settings for commands that read, compare and exit."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["economy", "without_collection"]

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
