"""What keeps a command cheap that reads, compares and ends."""

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
    """Keep the garbage collector off what is all in use: it would look at it many times."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def economy() -> Iterator[None]:
    """For the whole of a command: as many files as there may be, no collector, no idle threads.

    A ring stays open while its run is looked at, and a job may have more of them than the
    usual limit of 1024 files.

    numpy's linear algebra starts one for each processor when it is loaded, and they wait
    busily. Programs that the command starts would inherit the setting: this is for one that
    starts none.
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
