"""Healthy services that look odd: none of them may be said to hang."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from urllib.parse import urlsplit

from tests.services.acts import nothing
from tests.services.case import Case, Moment, healthy
from tests.services.service import PROMPT, Service

__all__ = ["CASES"]

LOADED_SECONDS = 25.0
"""Longer than all questions take."""
FEW_BLOCKS = {"arguments": ["--block-size", "32", "--num-gpu-blocks-override", "10"]}
"""Two requests of full length have no room beside one another."""
UNPLANTED = {"NCCLSCOPE_TEST_FAULT": ""}
"""What looks for a fault at each all_reduce cannot be compiled."""
SLOW_PREFILL = {"arguments": ["--max-num-batched-tokens", "8"]}
UNREAD_BYTES = 4096


def _load(service: Service) -> None:
    service.load(24, LOADED_SECONDS, tokens=150)


def _too_long(service: Service) -> None:
    """Ask for more than the cache has room for, which vLLM refuses."""
    refusal = ""
    try:
        service.server.answer(list(range(10, 310)), 4)
    except RuntimeError as error:
        refusal = str(error)
    if "answered 400" not in refusal:
        raise RuntimeError(f"the request was not refused: {refusal}")


def _give_up(service: Service) -> None:
    """Let clients hang up in the middle of their streams, again and again."""

    def hang_up() -> None:
        for _ in zip(service.server.stream(PROMPT, 200), range(5), strict=False):
            pass

    service.repeat(6, LOADED_SECONDS, hang_up)


def _disconnect(service: Service) -> None:
    """Let clients go without having read anything."""

    def disconnect() -> None:
        with contextlib.suppress(TimeoutError):
            service.server.complete(PROMPT, 240, timeout=0.2)

    service.repeat(6, 8.0, disconnect)


def _bursts(service: Service) -> None:
    def burst() -> None:
        service.server.answer([PROMPT] * 12, 40)
        time.sleep(3.0)

    service.repeat(1, LOADED_SECONDS, burst)


def _long_prompts(service: Service) -> None:
    def long_prompt() -> None:
        service.server.complete(list(range(10, 250)), 4)

    service.repeat(4, LOADED_SECONDS, long_prompt)


def _readnothing(service: Service) -> None:
    """Ask for much, and read nothing of it."""
    body = json.dumps(
        {
            "model": "tiny-moe",
            "prompt": [3, 4, 5],
            "max_tokens": 240,
            "n": 8,
            "logprobs": 5,
            "ignore_eos": True,
            "stream": True,
        }
    )
    place = urlsplit(service.server.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
    client.connect((place.hostname, place.port))
    client.sendall(
        f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json"
        f"\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    service.keep(client)


def _generate_again(service: Service) -> None:
    (service.switch.parent / "ready").unlink()


CASES = [
    Case(
        "healthy_load",
        [
            Moment(healthy("24 clients share 8 places, so that most requests wait"), _load, "load"),
            Moment(healthy("the load has ended"), nothing, "after", LOADED_SECONDS),
            Moment(healthy("clients hang up in the middle of streams"), _give_up, "aborts", 5.0),
            Moment(healthy("no client is left"), nothing, "aborted", LOADED_SECONDS),
            Moment(healthy("all clients went before the answer"), _disconnect, "disconnected", 20),
            Moment(healthy("bursts, and pauses of three seconds"), _bursts, "bursts"),
            Moment(healthy("nobody has asked for a minute"), nothing, "idle", 70.0),
        ],
        untraced=False,
    ),
    Case("few_blocks", [Moment(healthy("requests preempt each other"), _load)], FEW_BLOCKS),
    Case(
        "long_prefill",
        [Moment(healthy("prompts take 30 steps each"), _long_prompts)],
        SLOW_PREFILL,
    ),
    Case(
        "too_long",
        [Moment(healthy("a request that is longer than the cache was refused"), _too_long)],
    ),
    Case(
        "slow_client",
        [Moment(healthy("a client reads nothing of what it asked for"), _readnothing)],
        {"tokenizer": True},
    ),
    Case(
        "compiles",
        [Moment(healthy("a service that has compiled its model rests"), nothing)],
        {"eager": False},
        UNPLANTED,
        untraced=False,
        starting=healthy("the service starts, and compiles its model"),
    ),
    Case(
        "offline",
        [
            Moment(healthy("a program rests between two calls of generate"), nothing, "between"),
            Moment(healthy("the program has generated again"), _generate_again, "again"),
        ],
        {"offline": True},
    ),
]
