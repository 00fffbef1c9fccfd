"""`watch --otlp` through a real collector, Rotel, which forwards to a receiver of ours."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope.launch.rank_process import free_port
from tests.integration.test_otlp import check_divergence, diverged, watch
from tests.support.otlp_receiver import Received, receiver

__all__ = ["diverged"]

ROTEL = importlib.util.find_spec("rotel")

pytestmark = pytest.mark.skipif(ROTEL is None, reason="needs Rotel: pip install rotel")


@pytest.fixture
def received() -> Iterator[Received]:
    with receiver() as received:
        yield received


@pytest.fixture
def collector(received: Received, tmp_path: Path) -> Iterator[str]:
    """The URL of a collector that sends on to `received`."""
    assert ROTEL is not None
    assert ROTEL.origin is not None
    ports = [free_port(), free_port()]
    log = (tmp_path / "collector.log").open("wb")
    agent = Path(ROTEL.origin).with_name("rotel-agent")
    running = subprocess.Popen(
        [
            *(agent, "start", "--exporter", "otlp", "--otlp-exporter-protocol", "http"),
            *("--otlp-exporter-endpoint", received.url),
            *("--otlp-http-endpoint", f"127.0.0.1:{ports[0]}"),
            *("--otlp-grpc-endpoint", f"127.0.0.1:{ports[1]}"),
        ],
        stdout=log,
        stderr=log,
        env={**os.environ, "ROTEL_ENABLE_INTERNAL_TELEMETRY": "false"},
    )
    deadline = time.monotonic() + 60
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", ports[0])) == 0:
                    break
            said = (tmp_path / "collector.log").read_text()
            assert running.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        running.kill()
        running.wait()
        log.close()


def test_a_collector_forwards_metrics_and_event(
    diverged: Path, received: Received, collector: str
) -> None:
    done = watch(diverged, "--until-divergence", "--json", "--otlp", collector)
    assert (done.returncode, done.stderr) == (1, "")
    check_divergence(received)
