"""Ctrl-C while a command reads: one line, status 130, and nothing left behind."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rings import fill, tracer_in

HANGS = """
import sys, time
import ncclscope.render.console.progress as progress
import ncclscope.readers as sources
from ncclscope.__main__ import main

def hang(path):
    while True:  # not pause(): a signal that comes just before it is dealt with after it only
        time.sleep(0.05)

progress.SHOWN_AFTER = 0.0
sources.read_ring = hang
sys.exit(main())
"""
"""The command, which shows how far it is at once, and at the first ring gets no further."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    for rank in range(2):
        tracer = tracer_in(directory, rank=rank, world_size=2)
        fill(tracer, tracer.communicator("tp:0", "tp:0", range(2)), 1, 20)
        tracer.close()
    return directory


def output_on_terminal(command: list[str], cwd: Path, *, until: bytes) -> tuple[int, bytes]:
    """Run a command with a terminal for its talk, and interrupts it when that says so."""
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=other_end,
    )
    os.close(other_end)
    output = b""
    interrupted = False
    while True:
        if not select.select([terminal], [], [], 60)[0]:
            process.kill()  # no more output comes: what there is gets checked
        try:
            part = os.read(terminal, 4096)
        except OSError:  # as Linux says that nobody is at the other end
            break
        if not part:
            break
        output += part
        if until in output and not interrupted:
            interrupted = True
            process.send_signal(signal.SIGINT)
    os.close(terminal)
    return process.wait(timeout=30), output


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose", "run"],
        ["diff", "run#0", "run#1"],
        ["check", "run", "--baseline", "calls.lock", "--update"],
    ],
    ids=lambda words: words[0],
)
def test_an_interruption_is_one_line(run: Path, words: list[str]) -> None:
    before = sorted(run.parent.rglob("*"))

    status, output = output_on_terminal(
        [sys.executable, "-c", HANGS, *words], run.parent, until=b"0/2"
    )

    assert status == 130
    assert output.rpartition(b"\x1b[2K")[2] == b"ncclscope: interrupted\r\n"
    assert b"Traceback" not in output
    assert sorted(run.parent.rglob("*")) == before


def test_a_document_comes_without_a_bar(run: Path) -> None:
    ended = HANGS.replace("time.sleep(0.05)", "raise KeyboardInterrupt")

    status, output = output_on_terminal(
        [sys.executable, "-c", ended, "diagnose", "run", "--json"], run.parent, until=b"never"
    )

    assert (status, output) == (130, b"ncclscope: interrupted\r\n")
