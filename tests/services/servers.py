"""Cases in which the API server is at fault, or was asked to rest."""

from __future__ import annotations

import signal
import time

from tests.services.acts import finish_with, stop
from tests.services.case import Case, Moment, Truth, healthy
from tests.services.service import SERVER, Service

__all__ = ["CASES"]

NAMED = (SERVER, r"API.?server|the server")
KINDS = ("rpc_stalled",)
MIDDLEWARE = {"arguments": ["--middleware", "ncclscope_test_service.freeze"]}


def _stop_while_busy(service: Service) -> None:
    service.ask()
    time.sleep(0.3)
    service.signal(SERVER, signal.SIGSTOP)


def _freeze(service: Service) -> None:
    service.plant("hold_server")
    service.post("/health")


def _freeze_while_busy(service: Service) -> None:
    service.ask()
    time.sleep(0.3)
    _freeze(service)


def _pause(service: Service) -> None:
    service.posted("/pause?mode=wait")
    service.ask()


def _resume(service: Service) -> None:
    service.posted("/resume")


def _sleep(service: Service) -> None:
    service.posted("/sleep?level=1")
    service.ask()


def _wake(service: Service) -> None:
    service.posted("/wake_up")


def _idle(what: str) -> Truth:
    return Truth(
        what, ("unknown", "hung"), KINDS, process=NAMED, killed=("unknown", "ok"), waits=False
    )


def _busy(what: str) -> Truth:
    return Truth(what, kinds=KINDS, process=NAMED)


CASES = [
    Case(
        "api_frozen_idle",
        [Moment(_idle("the API server's event loop waits for a lock; no request runs"), _freeze)],
        MIDDLEWARE,
    ),
    Case(
        "api_frozen_busy",
        [
            Moment(
                _busy("the API server's event loop waits for a lock, with a request open"),
                _freeze_while_busy,
            )
        ],
        MIDDLEWARE,
    ),
    Case(
        "api_stopped_idle",
        [Moment(_idle("SIGSTOP stopped the API server; no request is open"), stop(SERVER))],
    ),
    Case(
        "api_stopped_busy",
        [Moment(_busy("SIGSTOP stopped the API server, with a request open"), _stop_while_busy)],
    ),
    Case(
        "answers_held",
        [
            Moment(
                _busy(
                    "the API server's task that takes the engine's answers waits for ever, and its "
                    "event loop goes on; the engine has made all tokens"
                ),
                finish_with("hold_answers"),
            )
        ],
        faults=["hold_answers", "note_rest"],
    ),
    Case(
        "pause_never_resumed",
        [
            Moment(
                healthy("POST /pause paused the engine, and a request waits", says="paused"),
                _pause,
                "paused",
            ),
            Moment(healthy("POST /resume resumed the engine"), _resume, "resumed", 3.0),
        ],
    ),
    Case(
        "sleep_then_request",
        [
            Moment(
                healthy(
                    "POST /sleep put the engine to sleep, and a request waits", says="paused|sleep"
                ),
                _sleep,
                "asleep",
            ),
            Moment(healthy("POST /wake_up woke the engine"), _wake, "awake", 3.0),
        ],
    ),
]
