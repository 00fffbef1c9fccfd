"""What it takes to diagnose many rings, in a process of its own: for ``benchmarks.runners``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cost", "measure", "most_memory"]


@dataclass(frozen=True)
class Cost:
    """One diagnosis.

    Attributes:
        seconds: From the first file that is opened to the verdict.
        processor: Seconds of processor time for it.
        memory: Most bytes that the process had in use.
        before: Those that it had before the first file.
        named: The ranks that the verdict names.
    """

    seconds: float
    processor: float
    memory: int
    before: int
    named: tuple[int, ...]


def measure(directory: Path) -> Cost:
    """Diagnose all rings below a directory in a fresh process."""
    command = [sys.executable, "-m", __name__, str(directory)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    cost = json.loads(done.stdout)
    cost["named"] = tuple(cost["named"])
    return Cost(**cost)


def main(directory: str) -> None:
    """Diagnose and print the cost."""
    from ncclscope.engine.verdict import diagnose
    from ncclscope.readers import open_run

    before = most_memory()
    start, busy = time.perf_counter(), time.process_time()
    verdict = diagnose(open_run(directory))
    verdict.to_dict()
    cost = {
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - busy,
        "memory": most_memory(),
        "before": before,
        "named": verdict.cause.diverging_ranks if verdict.cause else (),
    }
    json.dump(cost, sys.stdout)


def most_memory() -> int:
    """Return the most bytes in use so far; in ru_maxrss the parent's would count as well."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1])
