"""State, CPU time and wait channel of a process, from /proc.

Only files that never block on the process are read. If a process hangs in the kernel with its
memory map locked, reading /proc/PID/cmdline and /proc/PID/maps hangs, too; stat and status do
not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from ncclscope.attach.blocked import blocked_in
from ncclscope.clock import difference_ns
from ncclscope.model.snapshot import ProcessSample
from ncclscope.procfs import processor_wait, sleeps_until, switches
from ncclscope.untrusted import printable

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_GENERATIONS = 16
_ENDED = ProcessSample(state="X")


def state_of(pid: int) -> str:
    """Return a process's state letter from the kernel; ``X`` if there is no such process."""
    try:
        return _fields(_PROC / str(pid))[0]
    except (OSError, IndexError):
        return "X"


def read_sample(pid: int) -> ProcessSample:
    """Return one sample of a process; its state is ``X`` if there is no such process."""
    home = _PROC / str(pid)
    try:
        fields = _fields(home)
        main = _fields(home / "task" / str(pid))
        wchan = _text(home / "wchan").strip("0")
        return ProcessSample(
            state=main[0] if fields[0] not in "ZX" else fields[0],
            cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
            main_cpu_seconds=(int(main[11]) + int(main[12])) / _TICKS,
            main_delayed_seconds=processor_wait(pid) or 0.0,
            io_bytes=0 if main[0] == "D" else _io_bytes(home),
            switches=switches(pid),
            wchan=wchan,
            threads=_threads(home),
            # In state D, even reading this file can hang.
            blocked="" if main[0] == "D" else blocked_in(home, wchan),
            wakes_ns=_wakes_ns(pid) if main[0] == "S" else 0,
        )
    except (OSError, IndexError, ValueError):
        return _ENDED


def started_seconds(pids: Collection[int]) -> dict[int, float]:
    """Return the CPU time of what each rank has started, in seconds.

    Processes below another rank count for that one, and those that a rank has waited for count.

    Args:
        pids: Pids of all ranks.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for name in filter(str.isdecimal, os.listdir(_PROC)):
        try:
            fields = _fields(_PROC / name)
            waited = int(fields[13]) + int(fields[14])
            own = 0 if int(name) in pids else int(fields[11]) + int(fields[12])
            parents[int(name)], ticks[int(name)] = int(fields[1]), own + waited
        except (OSError, IndexError, ValueError):  # it has ended meanwhile
            continue
    found = dict.fromkeys(pids, 0.0)
    for pid, used in ticks.items():
        for _ in range(_GENERATIONS):
            if pid in found or pid not in parents:
                break
            pid = parents[pid]
        if pid in found:
            found[pid] += used / _TICKS
    return found


def _fields(place: Path) -> list[str]:
    """Return a stat file's fields from the state on; the name before may hold ``)`` and blanks."""
    return _text(place / "stat", strict=True).rpartition(")")[2].split()


def _io_bytes(home: Path) -> int:
    lines = (line.partition(":") for line in _text(home / "io").splitlines())
    return sum(int(value) for name, _, value in lines if name in ("rchar", "wchar"))


def _wakes_ns(pid: int) -> int:
    until = sleeps_until(pid)
    return until and until + difference_ns()


def _threads(home: Path) -> dict[str, int]:
    names: Counter[str] = Counter()
    for task in os.listdir(home / "task"):
        names[printable(_text(home / "task" / task / "comm").strip())] += 1
    return dict(names.most_common(64))


def _text(path: Path, *, strict: bool = False) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        if strict:
            raise
        return ""
