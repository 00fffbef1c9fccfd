"""Which files a diagnosis goes through: ``python -m benchmarks.runners.files DIRECTORY``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["passed_through"]

ROOT = Path(__file__).parents[2]
ROOMS = ("ncclscope/", "analyzers/")
DECIDING = ("ncclscope/engine/", "ncclscope/wording/", "analyzers/")
"""Rooms that compare, decide and word; the others read records and hold the vocabulary."""


def passed_through(directory: Path) -> list[str]:
    """Return the files of ncclscope whose functions a diagnosis calls, in order.

    A file is named once for each time that a call comes to it from another one.

    Args:
        directory: Where the records of a job are.
    """
    from ncclscope.engine.verdict import diagnose
    from ncclscope.readers import open_run

    diagnose(open_run(directory))  # imports what it needs
    found: list[str] = []

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT)) and (not found or found[-1] != path):
            found.append(path)

    sys.setprofile(note)
    try:
        diagnose(open_run(directory))
    finally:
        sys.setprofile(None)
    return [path for one in found if (path := str(Path(one).relative_to(ROOT))).startswith(ROOMS)]


def main(arguments: Sequence[str]) -> None:
    """Print how many files of each room a diagnosis comes to, and in which order first."""
    found = passed_through(Path(arguments[0]))
    files = list(dict.fromkeys(found))
    print(f"{len(files)} files")
    deciding = [path for path in found if path.startswith(DECIDING)]
    changes = sum(one != other for one, other in pairwise(deciding))
    those = len({*deciding})
    print(f"{those} of them compare, decide and word, with {changes + 1 - those} returns")
    for room, count in Counter(str(Path(path).parent) for path in files).most_common():
        print(f"{count:4}  {room}")
    print(*files, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
