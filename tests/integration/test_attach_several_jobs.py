"""Two jobs that record in one directory at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ncclscope.attach.session import Options, sample_job
from ncclscope.engine.verdict import diagnose

PROCESS = """
import sys
from ncclscope import Tracer
tracer = Tracer(sys.argv[1], rank=int(sys.argv[2]), world_size=2)
comm = tracer.communicator(key=sys.argv[4] * 32, label="world", ranks=[0, 1], backend="gloo")
for op in sys.argv[3].split():
    tracer.record(comm, op)
print(flush=True)
sys.stdin.read()
"""


AGREE = ("barrier barrier", "barrier barrier")
DIFFER = ("barrier barrier", "barrier all_gather")


@contextmanager
def job(directory: Path, run: str, calls: tuple[str, str]) -> Iterator[list[int]]:
    """Yield the pids of two ranks that have posted some calls, and wait for input."""
    with ExitStack() as stack:
        pids = []
        for rank, ops in enumerate(calls):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROCESS, str(directory), str(rank), ops, run],
                    env={**os.environ, "NCCLSCOPE_RUN": run},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            assert process.stdout is not None
            process.stdout.readline()
            stack.callback(process.kill)
            pids.append(process.pid)
        yield pids


@pytest.mark.parametrize(("older", "newer"), [(DIFFER, AGREE), (AGREE, DIFFER), (AGREE, AGREE)])
def test_the_job_that_diverged_is_sampled_or_else_the_newer_one(
    tmp_path: Path, older: tuple[str, str], newer: tuple[str, str]
) -> None:
    with job(tmp_path, "a", older) as first, job(tmp_path, "b", newer) as second:
        found = sample_job(Options(pids=(*first, *second), gap=0.1))
        verdict = diagnose(found.run)

    expected = first if older == DIFFER else second
    assert [one.pid for one in found.snapshot.workers] == expected
    assert [rank.pid for rank in found.run.ranks] == expected
    assert (verdict.cause is not None) == (DIFFER in (older, newer))
    assert found.run.sources == (str(tmp_path),)
