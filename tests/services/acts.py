"""What several cases do to a service."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tests.services.service import Service

__all__ = [
    "Act",
    "ask",
    "ask_with",
    "done_at_rest",
    "finish_with",
    "nothing",
    "stop",
    "wait_until",
]

Act = Callable[[Service], None]
_POLL_SECONDS = 0.05
_AT_MOST_SECONDS = 60.0


def nothing(service: Service) -> None:
    """Leave the service to itself."""


def ask(service: Service) -> None:
    """Send a request."""
    service.ask()


def ask_with(fault: str, *replicas: int) -> Act:
    """Return an act that plants a fault and sends a request, or one to each of these replicas."""

    def act(service: Service) -> None:
        service.plant(fault)
        for replica in replicas or (None,):
            service.ask(replica=replica)

    return act


def finish_with(fault: str) -> Act:
    """Return an act that plants a fault, sends a request, and waits until the engine has run it.

    On a busy machine that may take longer than a hang does: until then the engine works, and
    nobody can know that no answer will come. The case has the fault `note_rest`, too.
    """

    def act(service: Service) -> None:
        wait_until(lambda: done_at_rest(service) > 0)
        before = done_at_rest(service)
        service.plant(fault)
        service.ask()
        wait_until(lambda: done_at_rest(service) > before)

    return act


def done_at_rest(service: Service, replica: int = 0) -> int:
    """Return how much an engine had done when it last began to rest, as `note_rest` counts it."""
    note = service.switch.with_name(f"rest{replica}")
    return int(note.read_text()) if note.exists() else 0


def stop(title: str, number: signal.Signals = signal.SIGSTOP) -> Act:
    """Return an act that sends a signal to the first process whose title begins so."""
    return lambda service: service.signal(title, number)


def wait_until(holds: Callable[[], bool]) -> None:
    """Return as soon as something holds.

    Raises:
        RuntimeError: It did not within a minute.
    """
    deadline = time.monotonic() + _AT_MOST_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("what an act waits for did not come")
        time.sleep(_POLL_SECONDS)
