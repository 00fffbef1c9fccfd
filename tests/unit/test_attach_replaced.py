"""A rank whose process has become another program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ncclscope import open_run
from ncclscope.attach.candidate import Candidate
from ncclscope.attach.replaced import replaced_programs
from ncclscope.attach.session import Options, sample_job
from ncclscope.model.snapshot import Stacks
from ncclscope.render.console.attach import render_attach
from ncclscope.render.console.terminal import plain_text
from tests.support.snapshots import in_collective, judged, worker

REPLACED = """
import os, sys
from ncclscope import Tracer
tracer = Tracer(sys.argv[1], rank=int(sys.argv[3]), world_size=2)
tracer.communicator(key="1" * 32, label="world", ranks=[0, 1], backend="gloo")
if sys.argv[2] == "exec":
    os.execv("/bin/sh", ["sh", "-c", "echo; read line"])
print(flush=True)
input()
"""


@contextmanager
def traced(directory: Path, then: str, rank: int = 1) -> Iterator[int]:
    """Yield the pid of a process that has written a ring."""
    command = [sys.executable, "-c", REPLACED, str(directory), then, str(rank)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate("\n")


def test_a_process_that_replaced_its_program_is_found_by_its_ring(tmp_path: Path) -> None:
    with traced(tmp_path, "exec") as pid:
        run = open_run(tmp_path)
        (found,) = replaced_programs(run, [])
        again = replaced_programs(run, [Candidate(pid)])
        restarted = replaced_programs(run, [Candidate(1, environment={"RANK": "1"})])

    assert (found.pid, found.words[0], found.rings) == (pid, "sh", ())
    assert (again, restarted) == ([], [])


def test_a_rank_that_was_only_not_named_is_none(tmp_path: Path) -> None:
    with traced(tmp_path, "input"):
        found = replaced_programs(open_run(tmp_path), [])

    assert found == []


def test_it_is_sampled_beside_the_named_processes(tmp_path: Path) -> None:
    with traced(tmp_path, "input", 0) as named, traced(tmp_path, "exec") as pid:
        seen = sample_job(Options(pids=(named,), gap=0.1)).snapshot

    assert [(one.rank, one.pid) for one in seen.workers] == [(0, named), (1, pid)]


def test_the_table_names_the_program_that_the_process_is_now() -> None:
    waiting = [worker(rank, in_collective("all_reduce", 10)) for rank in (0, 2)]
    unread = (Stacks(error="py-spy finds no Python interpreter in it"),) * 2
    other = replace(
        worker(1, ()), rank_source="ring", title="/bin/sleep 1000", rings=(), stacks=unread
    )
    verdict = judged(waiting[0], other, waiting[1])
    text = plain_text(render_attach(verdict, 100), 100)

    assert "runs another program now: sleep" in text
    assert "no such process" not in text
    assert "no live process" not in text
