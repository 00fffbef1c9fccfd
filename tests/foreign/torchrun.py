"""Runs a program under torchrun, traced, while ``ncclscope watch`` runs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

__all__ = ["ALARMS", "Observed", "Running", "run_watched", "start_watched"]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")
NCCLSCOPE = (sys.executable, "-m", "ncclscope")
ALARMS = frozenset({"diverged", "hung"})


@dataclass(frozen=True)
class Observed:
    """Observations of a program that has ended.

    Attributes:
        status: Its exit status.
        output: What it printed.
        watched: The documents of ``watch``, in their order.
        verdict: The document of ``diagnose``, after its end.
    """

    status: int
    output: str
    watched: list[dict[str, Any]]
    verdict: dict[str, Any]

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Return the documents of ``watch`` that are alarms."""
        return [document for document in self.watched if document["status"] in ALARMS]


@dataclass(frozen=True)
class Running:
    """A program under way.

    Attributes:
        program: torchrun, under ``ncclscope run``.
        rings: Where the rings are.
        log: What the program has printed.
    """

    program: subprocess.Popen[bytes]
    rings: Path
    log: Path
    _watch: subprocess.Popen[bytes]
    _samples: Path

    def watched(self) -> list[dict[str, Any]]:
        """Return the documents that ``watch`` has printed so far."""
        lines = self._samples.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def finish(self, timeout: float) -> Observed:
        """Wait for the program's end and return what was seen of it."""
        status = self.program.wait(timeout)
        self._watch.terminate()
        self._watch.wait(30)
        return Observed(status, self.log.read_text(), self.watched(), diagnose(self.rings))


@contextlib.contextmanager
def start_watched(
    rings: Path, folder: Path, name: str, *arguments: str, ranks: int = 4, restarts: int = 0
) -> Iterator[Running]:
    """Start a program of this package; what still runs at the end is killed.

    Args:
        rings: An empty directory for the rings.
        folder: For what is printed.
        name: Of the program, without its suffix.
        *arguments: The program's own.
        ranks: Workers that torchrun starts.
        restarts: How often torchrun starts them anew when one fails.
    """
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        # Otherwise restarted workers read gloo's addresses of those before them.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    torchrun = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(ranks), "--max-restarts", str(restarts)),
    )
    command = (str(PROGRAMS / f"{name}.py"), *arguments)
    log, samples = folder / "program.log", folder / "watch.jsonl"
    with (
        log.open("wb") as printed,
        samples.open("wb") as seen,
        (folder / "watch.log").open("wb") as messages,
    ):
        watch = subprocess.Popen(
            [*NCCLSCOPE, "watch", "--json", str(rings)], stdout=seen, stderr=messages, cwd=ROOT
        )
        program = subprocess.Popen(
            [*NCCLSCOPE, "run", "--dir", str(rings), "--", *torchrun, *command],
            env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield Running(program, rings, log, watch, samples)
    finally:
        watch.kill()
        watch.wait()
        _kill(program.pid)
        program.wait()


def run_watched(
    rings: Path, folder: Path, name: str, *arguments: str, restarts: int = 0, timeout: float = 500
) -> Observed:
    """Run a program of this package to its end."""
    with start_watched(rings, folder, name, *arguments, restarts=restarts) as running:
        return running.finish(timeout)


def diagnose(rings: Path) -> dict[str, Any]:
    """Return the document of ``ncclscope diagnose``."""
    completed = subprocess.run(
        [*NCCLSCOPE, "diagnose", "--json", str(rings)],
        capture_output=True, text=True, timeout=300, cwd=ROOT,
    )  # fmt: skip
    assert completed.stdout, completed.stderr
    document: dict[str, Any] = json.loads(completed.stdout)
    return document


def _kill(pid: int) -> None:
    """Kill a process with all below it: torchrun gives each worker a session of its own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
