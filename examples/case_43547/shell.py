"""What the scripts of this example share: a place for files, and commands with their output."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NCCLSCOPE = [sys.executable, "-m", "ncclscope"]
ENVIRONMENT = {
    "NCCLSCOPE_VLLM_CPU_MOE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONWARNINGS": "ignore",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""For processes that use vLLM's classes without a server."""

_began = time.monotonic()


def say(text: str = "") -> None:
    """Print a line at once, since child processes write in between."""
    print(text, flush=True)


def timed(text: str) -> None:
    """Print a line with the seconds that have passed."""
    say(f"{time.monotonic() - _began:6.1f} s  {text}")


def parser_of(description: str) -> argparse.ArgumentParser:
    """Return a parser that knows where files go."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, help="keep the files here")
    return parser


@contextmanager
def place(given: Path | None) -> Iterator[Path]:
    """Yield the directory for files: the given one, or one that is gone afterwards."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        if any(given.iterdir()):
            raise SystemExit(f"{given} is not empty; name a directory that is new")
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="case-43547-") as name:
        yield Path(name)


def need_vllm() -> None:
    """End the program with one line where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        print("this needs vLLM's CPU build; `make test-vllm` installs it", file=sys.stderr)
        raise SystemExit(2)


def show(*arguments: object, lines: int | None = None) -> int:
    """Run an ncclscope command and prints it with what it says.

    Args:
        arguments: Of the command.
        lines: How many lines of its output are shown; all when absent.

    Returns:
        Its exit status.
    """
    words = [str(argument) for argument in arguments]
    say(f"$ ncclscope {' '.join(words)}")
    done = subprocess.run(
        [*NCCLSCOPE, *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "100"},
    )
    lines_read = done.stdout.rstrip().splitlines()
    for line in lines_read[:lines]:
        say(line.rstrip())
    if lines is not None and len(lines_read) > lines:
        say(f"[... {len(lines_read) - lines} more lines]")
    if done.returncode == 2:
        say(done.stderr.rstrip())
    say(f"[exit status {done.returncode}]\n")
    return done.returncode
