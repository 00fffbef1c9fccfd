"""Ask ncclscope about a service in each way that there is."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.services.service import SERVER, Service

__all__ = ["Answer", "ask", "ask_rings", "diagnose"]

_NCCLSCOPE = [sys.executable, "-m", "ncclscope"]
_TIMEOUT = 120.0


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        way: How it was asked for.
        document: What was printed, or nothing if that is no document.
        exit_status: Of the command.
        errors: What it wrote to stderr.
        seconds: How long it took.
    """

    way: str
    document: dict[str, Any] | None
    exit_status: int
    errors: str
    seconds: float


def ask(service: Service) -> Iterator[Answer]:
    """Yield all answers about a service whose processes live."""
    name = "attach" if service.traced else "untraced"
    yield from ask_rings(service)
    for way, named in ((name, False), (f"{name} PIDs", True)):
        pids = [str(pid) for pid in sorted(service.processes().values())]
        if pids:
            answer = _run(way, "attach", "--json", *(pids if named else []))
            # It may have ended by itself; its server is the last to go.
            if answer.document or service.processes().keys() - {SERVER}:
                yield answer


def ask_rings(service: Service) -> Iterator[Answer]:
    """Yield what the rings of a traced service say, whether its processes live or not."""
    if service.traced:
        yield _run("watch", "watch", str(service.rings), "--once", "--json")
        yield diagnose(service, "diagnose")


def diagnose(service: Service, way: str) -> Answer:
    """Return what the rings of a service say."""
    return _run(way, "diagnose", str(service.rings), "--json")


def _run(way: str, *command: str) -> Answer:
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*_NCCLSCOPE, *command], capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return Answer(way, None, -1, "timed out", _TIMEOUT)
    seconds = time.monotonic() - began
    document = json.loads(done.stdout) if done.stdout.strip() else None
    return Answer(way, document, done.returncode, done.stderr.strip(), seconds)
