"""A real vLLM server on the CPU that hangs outside of collectives: `make test-vllm`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.traced_server import TracedServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

PROMPT = [1, 2, 3, 4]
DEADLINE = 90.0


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[TracedServer]:
    traced = TracedServer(tmp_path, environment={"VLLM_SERVER_DEV_MODE": "1"})
    with traced.server:
        traced.server.complete(PROMPT, max_tokens=6)
        yield traced


def _in_background(call: Callable[..., Any], *args: Any, **more: Any) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            call(*args, **more)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _post(traced: TracedServer, path: str, body: Any = None) -> None:
    request = urllib.request.Request(
        traced.server.url + path,
        data=json.dumps(body or {}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=2 * DEADLINE):
        pass


def _until(traced: TracedServer, says: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first document of `diagnose` that says so."""
    deadline = time.monotonic() + DEADLINE
    while True:
        _, document = traced.diagnose()
        if says(document):
            return document
        assert time.monotonic() < deadline, document["summary"]
        time.sleep(0.5)


def _hangs(document: dict[str, Any]) -> bool:
    return bool(document["status"] == "hung")


def _said(document: dict[str, Any]) -> tuple[str, list[int], str]:
    verdict = document["verdict"]
    return verdict["kind"], verdict["diverging_ranks"], verdict["confidence"]


def test_a_service_that_hangs_is_never_ok(traced: TracedServer) -> None:
    server = traced.server
    assert traced.diagnose()[1]["status"] == "ok"

    # The scheduler finds no free block, and admits the request once there are some.
    traced.plant("no_blocks")
    request = _in_background(server.complete, PROMPT, 6, 2 * DEADLINE)
    full = _until(traced, _hangs)
    assert _said(full) == ("not_scheduled", [], "likely")
    assert "1 waiting" in " ".join(full["verdict"]["evidence"])
    traced.switch.unlink()
    request.join(DEADLINE)
    assert _until(traced, lambda one: one["status"] == "ok")["verdict"] is None

    # Who gives up leaves an idle engine.
    traced.plant("no_blocks")
    with pytest.raises(TimeoutError):
        server.complete(PROMPT, 6, timeout=8)
    rest = _until(traced, lambda one: one["status"] == "ok")
    assert "not_scheduled" not in {one["kind"] for one in rest["findings"]}
    traced.switch.unlink()

    # A pause is meant, and says so.
    _post(traced, "/pause?mode=wait")
    request = _in_background(server.complete, PROMPT, 6, 2 * DEADLINE)
    rest = _until(traced, lambda one: "is paused" in one["summary"])
    assert (rest["status"], rest["verdict"]) == ("ok", None)
    assert "1 open request" in rest["summary"]
    _post(traced, "/resume")
    request.join(DEADLINE)

    # An engine that is stopped, with a request and without.
    with server.stopped("VLLM::EngineCore"):
        idle = _until(traced, lambda one: one["status"] != "ok")
        assert (idle["status"], idle["verdict"]) == ("unknown", None)
        request = _in_background(server.complete, PROMPT, 6, 2 * DEADLINE)
        found = _until(traced, _hangs)
        assert f"Engine 0 (pid {server.engine_pid()}) is stopped" in found["summary"]
    request.join(DEADLINE)

    # A worker that never comes back from a method, as attach and a bundle of rings see it.
    traced.plant("hold_rpc")
    _in_background(_post, traced, "/collective_rpc", {"method": "check_health"})
    held = _until(traced, _hangs)
    assert _said(held) == ("rpc_stalled", [1], "likely")
    status, seen = traced.attach()
    assert (status, _said(seen)) == (1, ("rpc_stalled", [1], "likely"))
    assert "_wait_for_lock" in seen["summary"]


def test_a_lost_answer_names_the_worker(traced: TracedServer) -> None:
    traced.plant("lose_reply")
    _in_background(traced.server.complete, PROMPT, 6, 2 * DEADLINE)

    assert _said(_until(traced, _hangs)) == ("rpc_stalled", [0], "likely")
    assert _said(traced.attach()[1]) == ("rpc_stalled", [0], "likely")
    traced.kill_all()
    assert _said(traced.diagnose()[1]) == ("rpc_stalled", [0], "likely")


def test_a_killed_engine_is_a_dead_service(traced: TracedServer) -> None:
    pid = traced.server.engine_pid()
    os.kill(pid, signal.SIGKILL)

    found = _until(traced, _hangs)
    assert _said(found) == ("dead_rank", [], "likely")
    assert f"Engine 0 (pid {pid}) is gone" in found["summary"]
