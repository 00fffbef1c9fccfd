"""Run a program that may hang, such as one that reads a process stuck in the kernel."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Sequence

_MOST_BYTES = 1 << 24


def run_limited(command: Sequence[str], seconds: float) -> tuple[int | None, bytes, str]:
    """Run a program; return its status (None after a timeout), stdout and stderr.

    It writes to files, and every wait has a limit: a program that reads a process can hang in the
    kernel when that process does, and then not even SIGKILL ends it.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return -1, b"", str(error)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)  # so that it does not stay a zombie
            return None, b"", ""
        output.seek(0)
        errors.seek(0)
        text = errors.read(_MOST_BYTES).decode("utf-8", "replace")
        return status, output.read(_MOST_BYTES), text
