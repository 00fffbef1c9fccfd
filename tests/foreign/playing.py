"""Runs tests in processes of their own, each with a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.foreign.outcomes import Case, Outcome

__all__ = ["diagnose_rings", "list_tests", "play", "play_traced"]

ROOT = Path(__file__).resolve().parents[2]
NCCLSCOPE = (sys.executable, "-m", "ncclscope")
STARTING_SECONDS = 120
"""How long the import of torch may take."""
DIAGNOSIS_SECONDS = 600
"""How long a diagnosis may take: seconds, but this is no test of speed."""


def list_tests() -> list[str]:
    """Return the names of all of torch's tests."""
    with _folder() as folder:
        with (folder / "log").open("w") as log:
            subprocess.run(
                _command(folder / "names"), env=_environment(folder, 4), cwd=ROOT, check=True,
                stdout=log, stderr=log, timeout=STARTING_SECONDS,
            )  # fmt: skip
        names: list[str] = json.loads((folder / "names").read_text())
    return names


def play(
    cases: Sequence[Case], limit: float, prefix: Sequence[str] = ()
) -> Iterator[tuple[Case, Outcome]]:
    """Run tests one after another in one process, and yield how each ended.

    A test that does not end within `limit` seconds is killed, with its ranks, and the others
    are run by another process.

    Args:
        cases: Tests on equally many ranks.
        limit: Seconds for each.
        prefix: A command that runs the process.
    """
    remaining = list(cases)
    while remaining:
        with _folder() as folder:
            for outcome in _play_until_trouble(list(remaining), folder, limit, prefix):
                yield remaining.pop(0), outcome


def play_traced(case: Case, limit: float) -> Outcome:
    """Run one test under ``ncclscope run``, and diagnose the rings that it leaves."""
    with _folder(shared_memory=True) as rings:
        ((_, outcome),) = play([case], limit, (*NCCLSCOPE, "run", "--dir", str(rings), "--"))
        status, summary = diagnose_rings(rings)
    return replace(outcome, status=status, summary=summary)


def diagnose_rings(rings: Path) -> tuple[str, str]:
    """Return the status of ``ncclscope diagnose``, and its verdict in a sentence."""
    completed = subprocess.run(
        [*NCCLSCOPE, "diagnose", "--json", str(rings)],
        capture_output=True, text=True, timeout=DIAGNOSIS_SECONDS, cwd=ROOT,
    )  # fmt: skip
    if not completed.stdout:
        return "error", completed.stderr.strip()
    document = json.loads(completed.stdout)
    verdict = document["verdict"]
    return document["status"], "" if verdict is None else f"{verdict['kind']}: {verdict['summary']}"


def _play_until_trouble(
    cases: Sequence[Case], folder: Path, limit: float, prefix: Sequence[str]
) -> Iterator[Outcome]:
    """Yield outcomes until all have ended, one has died or one has not ended in time."""
    results, log = folder / "results", folder / "log"
    results.touch()
    with log.open("w") as output:
        process = subprocess.Popen(
            [*prefix, *_command(results), *(case.name for case in cases)],
            env=_environment(folder, cases[0].ranks), cwd=ROOT,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    done = 0
    deadline = time.monotonic() + STARTING_SECONDS + limit
    try:
        while True:
            ended = process.poll() is not None  # before reading what it has written
            lines = results.read_text().splitlines(keepends=True)
            for line in lines[done:]:
                if line.endswith("\n"):
                    done += 1
                    deadline = time.monotonic() + limit
                    yield Outcome(**json.loads(line))
            if done == len(cases):
                break
            if ended or time.monotonic() > deadline:
                how = f"with status {process.returncode}" if ended else f"not within {limit:g} s"
                detail = f"{how}\n{log.read_text()[-2000:]}"
                yield Outcome("died" if ended else "timed out", detail)
                return
            time.sleep(0.05)
        # Rings are complete when the processes that write them have ended.
        process.wait(timeout=limit)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _command(file: Path) -> list[str]:
    return [sys.executable, "-m", "tests.foreign.case", str(file)]


def _environment(folder: Path, world_size: int) -> dict[str, str]:
    """Return ours without what concerns tracing or torch."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NCCL", "TORCH", "GLOO"))
    }
    return {
        **kept,
        "BACKEND": "gloo",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),  # a test that is killed leaves files behind
        "WORLD_SIZE": str(world_size),
    }


@contextlib.contextmanager
def _folder(*, shared_memory: bool = False) -> Iterator[Path]:
    place = "/dev/shm" if shared_memory and os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix="ncclscope-foreign-", dir=place, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)
