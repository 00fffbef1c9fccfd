"""`watch --otlp`: what a receiver reads with OpenTelemetry's own messages."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope import Tracer
from tests.support.nodes import environment
from tests.support.otlp_receiver import Received, attributes_of, receiver
from tests.support.rings import tracer_in

RANKS = range(4)
DIVERGING = 3


@pytest.fixture
def diverged(rings: Path) -> Iterator[Path]:
    """Rings of four ranks in this process; one of them has posted another operation."""
    tracers: list[Tracer] = []
    for rank in RANKS:
        tracer = tracer_in(rings, rank=rank, world_size=len(RANKS))
        comm = tracer.communicator("K", "tp:0", RANKS, "nccl")
        for step in range(20):
            op = "all_gather" if (rank, step) == (DIVERGING, 15) else "all_reduce"
            tracer.record(comm, op, shape=(4,), dtype="float32")
        tracers.append(tracer)
    yield rings
    for tracer in tracers:
        tracer.close()


def watch(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ncclscope", "watch", *map(str, arguments)],
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def check_divergence(received: Received) -> None:
    """The divergence of `diverged` has come as metrics and as an event."""
    received.wait_for(lambda: bool(received.events) and bool(received.samples))
    (event,) = received.events
    assert event.event_name == "ncclscope.diverged"
    assert event.severity_text == "ERROR"
    assert event.body.string_value.startswith("Rank 3 ")
    about = attributes_of(event)
    assert about["ncclscope.kind"] == "op_mismatch"
    assert about["ncclscope.ranks.diverging"] == [DIVERGING]
    assert about["ncclscope.comm"] == "tp:0"
    assert about["ncclscope.seq"] == 16
    assert about["ncclscope.coverage.complete"] is True
    assert received.value("ncclscope_status", status="diverged") == 1
    assert received.value("ncclscope_status", status="ok") == 0
    assert received.value("ncclscope_verdict", kind="op_mismatch", ranks="3") == 1
    assert received.value("ncclscope_calls_total", rank="2", comm_name="tp:0") == 20
    assert received.value("ncclscope_coverage_complete") == 1
    assert received.kinds["ncclscope_calls_total"] == "sum"
    assert received.kinds["ncclscope_status"] == "gauge"
    assert {one["service.name"] for one in received.resources} == {"ncclscope"}


def test_a_divergence_is_metrics_and_an_event(diverged: Path) -> None:
    with receiver() as received:
        done = watch(diverged, "--until-divergence", "--json", "--otlp", received.url)
        assert (done.returncode, done.stderr) == (1, "")
        assert json.loads(done.stdout.splitlines()[-1])["status"] == "diverged"
        check_divergence(received)


def test_the_standard_variables_name_the_collector(diverged: Path) -> None:
    with receiver() as received:
        done = watch(
            *(diverged, "--once", "--otlp", "auto"),
            OTEL_EXPORTER_OTLP_ENDPOINT=received.url,
            OTEL_SERVICE_NAME="training",
        )
        assert done.returncode == 1
        received.wait_for(lambda: bool(received.events) and bool(received.samples))
        assert {one["service.name"] for one in received.resources} == {"training"}


@pytest.mark.slow
def test_a_collector_that_does_not_answer_costs_seconds_at_the_end(diverged: Path) -> None:
    began = time.monotonic()
    done = watch(diverged, "--until-divergence", "--json", "--otlp", "http://127.0.0.1:1")
    assert time.monotonic() - began < 60
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "diverged"
    (line,) = done.stderr.splitlines()
    assert line.startswith("ncclscope: OTLP: ")
    assert "refused" in line


@pytest.mark.parametrize("url", ["", "localhost:4318", "grpc://localhost:4317"])
def test_what_is_no_url_is_one_line(rings: Path, url: str) -> None:
    done = watch(rings, "--once", "--otlp", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not the URL of a collector" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_package_one_line_says_what_to_install(rings: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "opentelemetry"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('no')\n")
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    done = watch(rings, "--once", "--otlp", "http://127.0.0.1:1", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    package = "opentelemetry-exporter-otlp-proto-http"
    assert done.stderr == f"ncclscope: OTLP needs OpenTelemetry; pip install {package}\n"
