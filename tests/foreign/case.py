"""Runs some of torch's distributed tests: ``python -m tests.foreign.case FILE [NAME...]``.

Appends one JSON line for each test to FILE; without names, writes the names of all tests to it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unittest
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "4")

from torch.testing._internal.distributed.distributed_test import (  # reads BACKEND
    DistributedTest,
    TestDistBackend,
)


class OnGloo(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
    """All tests, each on ranks of its own.

    Ranks are forked where torch's CI spawns them, so that torch is imported once and not by
    each of them; this process never makes a process group.
    """

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def run(name: str) -> dict[str, Any]:
    """Run one test and return how it ended."""
    result = unittest.TestResult()
    began = time.monotonic()
    OnGloo(name).run(result)
    seconds = time.monotonic() - began
    if result.skipped:
        ending, detail = "skipped", result.skipped[0][1]
    elif result.failures or result.errors:
        ending, detail = "failed", (result.failures + result.errors)[0][1]
    else:
        ending, detail = "passed", ""
    return {"ending": ending, "detail": detail, "seconds": round(seconds, 1)}


def main(file: Path, names: list[str]) -> None:
    """Run the tests, or write down which there are."""
    torch.set_num_threads(1)
    if not names:
        file.write_text(json.dumps([name for name in dir(OnGloo) if name.startswith("test_")]))
    for name in names:
        outcome = run(name)
        with file.open("a") as results:
            results.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
