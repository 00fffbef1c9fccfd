"""The memory of processes over time, and how fast it grows."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryLog", "Trend", "fit_trend"]

_BLOCKS = 20
"""Points of a fit. Neighbouring samples resemble each other, so that each alone adds little."""
_FIELDS = {"VmRSS": "rss", "RssAnon": "heap", "RssShmem": "shared"}


@dataclass(frozen=True)
class Trend:
    """A straight line through the memory of a process.

    Attributes:
        first: Memory at the beginning of the line in KiB.
        last: Memory at its end in KiB.
        slope: Growth in KiB per minute.
        error: Standard error of `slope`.
    """

    first: float
    last: float
    slope: float
    error: float

    def __str__(self) -> str:
        return (
            f"{self.slope:+.2f} KiB/min, standard error {self.error:.2f} "
            f"({self.first / 1024:.1f} to {self.last / 1024:.1f} MiB)"
        )


class MemoryLog:
    """Sample the memory of some processes at regular intervals, in a thread of its own.

    Pages of files are left out of what is judged: they are the kernel's cache, and come and go
    with the other processes of the machine. Heap and shared memory, where rings lie, stay.

    Args:
        pids: The processes by name.
        interval: Seconds between two samples.

    Attributes:
        samples: For each sample `seconds` since the start, and by process name `rss`, `heap` and
            `shared` in KiB. A process that has ended is not in the later ones.
        seconds: How long it has sampled, once that is over.
    """

    def __init__(self, pids: Mapping[str, int], interval: float) -> None:
        self.samples: list[dict[str, float | dict[str, int]]] = []
        self.seconds = 0.0
        self._pids = dict(pids)
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MemoryLog:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.seconds = time.monotonic() - self._began

    def trends(self, since: float) -> dict[str, Trend]:
        """Fit lines to heap and shared memory of each process, as far as there are samples.

        For a process `NAME` with a twin `untraced NAME` there is also `NAME less untraced`.

        Args:
            since: Seconds from the start to the first sample that is used.
        """
        sizes: dict[str, list[tuple[float, float]]] = {}
        for sample in self.samples:
            seconds = sample["seconds"]
            if not isinstance(seconds, float) or seconds < since:
                continue
            now = {
                name: float(memory["heap"] + memory["shared"])
                for name, memory in sample.items()
                if isinstance(memory, dict)
            }
            for name in list(now):
                if (twin := f"untraced {name}") in now:
                    now[f"{name} less untraced"] = now[name] - now[twin]
            for name, size in now.items():
                sizes.setdefault(name, []).append((seconds / 60, size))
        trends = {name: fit_trend(*zip(*each, strict=True)) for name, each in sizes.items()}
        return {name: trend for name, trend in trends.items() if trend is not None}

    def _run(self) -> None:
        due = self._began
        while True:
            sample: dict[str, float | dict[str, int]] = {"seconds": time.monotonic() - self._began}
            for name, pid in self._pids.items():
                if memory := _memory(pid):
                    sample[name] = memory
            self.samples.append(sample)
            due += self._interval
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return


def fit_trend(minutes: Sequence[float], sizes: Sequence[float]) -> Trend | None:
    """Fit a line to the means of successive blocks; None with fewer than three blocks.

    Args:
        minutes: Times of the samples, ascending.
        sizes: Memory at these times in KiB.
    """
    count = min(_BLOCKS, len(minutes))
    if count < 3:
        return None
    edges = [len(minutes) * number // count for number in range(count + 1)]
    blocks = [slice(low, high) for low, high in itertools.pairwise(edges)]
    times = [statistics.fmean(minutes[block]) for block in blocks]
    means = [statistics.fmean(sizes[block]) for block in blocks]
    slope, intercept = statistics.linear_regression(times, means)
    squares = sum((y - intercept - slope * x) ** 2 for x, y in zip(times, means, strict=True))
    spread = sum((x - statistics.fmean(times)) ** 2 for x in times)
    error = (squares / (count - 2) / spread) ** 0.5
    return Trend(intercept + slope * times[0], intercept + slope * times[-1], slope, error)


def _memory(pid: int) -> dict[str, int]:
    """Return `rss`, `heap` and `shared` of a process in KiB; nothing when it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: int(fields[key].split()[0]) for key, name in _FIELDS.items() if key in fields}
