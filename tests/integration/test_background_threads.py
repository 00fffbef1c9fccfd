"""Threads of a tracer: a traced program ends, forks and waits for signals as an untraced one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.signalled import environment

TRACED = "import ncclscope; tracer = ncclscope.Tracer(sys.argv[1], rank=0, world_size=1)"
NO_FILES = "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))"
NO_LIBRARIES = "os.mkdir(sys.argv[1] + '/empty'); os.chroot(sys.argv[1] + '/empty'); os.chdir('/')"


def ended(folder: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    program = "\n".join(("import os, resource, signal, sys, time", *map(textwrap.dedent, lines)))
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "deed",
    [
        pytest.param(NO_FILES, id="no free descriptor"),
        pytest.param(
            NO_LIBRARIES,
            id="chroot",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can call chroot"),
        ),
    ],
)
@pytest.mark.parametrize("tracer", ["held", "dropped"])
def test_program_that_cannot_load_libraries_any_more_ends_normally(
    tmp_path: Path, deed: str, tracer: str
) -> None:
    """CPython ends daemon threads by pthread_exit, for which glibc loads libgcc_s."""
    drop = "del tracer" if tracer == "dropped" else ""
    done = ended(tmp_path, TRACED, drop, deed, "print('done')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_signal_that_a_program_waits_for_does_not_end_it_through_our_thread(
    tmp_path: Path,
) -> None:
    """The program blocks the signal in its threads, after the tracer has started its own."""
    wait = """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        os.kill(os.getpid(), signal.SIGUSR1)
        print(int(signal.sigwait({signal.SIGUSR1})))
    """
    done = ended(tmp_path, TRACED, wait)
    assert (done.returncode, done.stdout) == (0, f"{int(signal.SIGUSR1)}\n")
