"""Recognise that a launcher starts this process as one of several tasks of a job."""

from __future__ import annotations

import os

import psutil

from ncclscope import procfs

_PROGRAMS = frozenset(
    {
        *("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted"),
        *("mpiexec.hydra", "hydra_pmi_proxy", "slurmstepd", "torchrun", "torch.distributed.run"),
    }
)
"""Programs that are the parent of all tasks of one host. A shell may start several jobs."""


def launcher_name() -> str:
    """Return a name that all tasks of a launcher on this host share, and no other job.

    Returns:
        Empty if no launcher has started this process.
    """
    parent = os.getppid()
    try:
        process = psutil.Process(parent)
        # Linux cuts names at 15 bytes, and a script in Python has the interpreter's.
        known = {process.name(), *(os.path.basename(word) for word in process.cmdline()[:3])}
    except psutil.Error:
        return ""
    if not known & _PROGRAMS:
        return ""
    return f"launcher-{parent}-{procfs.start_ticks(parent)}"
