"""Small programs that tests run in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_program(
    source: str,
    *arguments: object,
    prefix: tuple[str, ...] = (),
    timeout: float = 30,
    **environment: object,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program and return how it ended and its output.

    Args:
        source: The program.
        *arguments: Its command line.
        prefix: A command that runs it, such as ``unshare``.
        timeout: Seconds after which it is killed and the test fails.
        **environment: Variables on top of the test's own; None takes one away.
    """
    variables = {name: str(value) for name, value in environment.items() if value is not None}
    inherited = {name: value for name, value in os.environ.items() if name not in environment}
    with subprocess.Popen(
        [*prefix, sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
        env=inherited | variables,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            output, complained = program.communicate(timeout=timeout)
        finally:
            # Whatever it has forked and not waited for is ended with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(program.args, program.returncode, output, complained)
