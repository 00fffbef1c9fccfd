"""Which bytes of its rings a diagnosis reads, seen from a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Range", "read_ranges"]

Range = tuple[int, int]
PAGE = 4096


def read_ranges(directory: Path) -> list[Range]:
    """Return the parts of a file that are read of any ring below a directory, in pages."""
    command = [sys.executable, "-m", __name__, str(directory)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [(start, stop) for start, stop in json.loads(done.stdout)]


def main(directory: str) -> None:
    """Diagnose and print what was read."""
    from ncclscope.engine.verdict import diagnose
    from ncclscope.readers import open_run

    asked: set[Range] = set()
    pread = os.pread

    def noted(descriptor: int, size: int, offset: int) -> bytes:
        asked.add((offset // PAGE * PAGE, -(-(offset + size) // PAGE) * PAGE))
        return pread(descriptor, size, offset)

    os.pread = noted
    diagnose(open_run(directory)).to_dict()
    json.dump(joined(asked), sys.stdout)


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges that overlap or touch as one."""
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


if __name__ == "__main__":
    main(sys.argv[1])
