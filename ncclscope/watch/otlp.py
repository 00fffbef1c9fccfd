"""Send a job's metrics and changes of its status to an OpenTelemetry collector, by OTLP over HTTP.

The metrics are those of the text file for Prometheus, with the same names. An event is a log record
with a name, such as ``ncclscope.diverged``, ``ncclscope.hung`` or ``ncclscope.ok``. The SDK's
threads send both, so that a collector that does not answer delays no poll.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ncclscope import __version__
from ncclscope.errors import UsageError
from ncclscope.metrics import METRICS, Sample
from ncclscope.untrusted import printable
from ncclscope.watch.poll import Poll
from ncclscope.watch.textfile import poll_samples

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

_INTERVAL_MS = 10_000
"""Milliseconds between two exports of the metrics, unless OTEL_METRIC_EXPORT_INTERVAL says more."""
_LAST_MS = 5_000
"""Milliseconds for the last export, when the watch ends."""
_TEXT = 400


class OtlpSender:
    """Sends metrics and events until it is closed.

    Args:
        endpoint: Base URL of the collector, such as ``http://localhost:4318``; ``auto`` for what
            OTEL_EXPORTER_OTLP_ENDPOINT says, or its default.
        warn: Receives one line when the collector first refuses or does not answer.

    Raises:
        UsageError: The endpoint is no URL, or OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str, warn: Callable[[str], None]) -> None:
        if endpoint != "auto" and urlsplit(endpoint).scheme not in ("http", "https"):
            raise UsageError(
                f"{printable(endpoint)} is not the URL of a collector",
                "such as http://localhost:4318, or auto for OTEL_EXPORTER_OTLP_ENDPOINT",
            )
        try:
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk._logs import LoggerProvider
            from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
        except ImportError:
            raise UsageError(
                "OTLP needs OpenTelemetry", "pip install opentelemetry-exporter-otlp-proto-http"
            ) from None
        _redirect_log(warn)
        base = endpoint.rstrip("/")
        metrics_url, logs_url = (
            (None, None) if endpoint == "auto" else (f"{base}/v1/metrics", f"{base}/v1/logs")
        )
        resource = Resource.create({"host.name": socket.gethostname(), **_service()})
        interval = None if os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") else _INTERVAL_MS
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(metrics_url), interval)
        self._samples: Sequence[Sample] = ()
        self._meters = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._logs = LoggerProvider(resource, shutdown_on_exit=False)
        self._logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(logs_url)))
        self._logger = self._logs.get_logger("ncclscope", __version__)
        meter = self._meters.get_meter("ncclscope", __version__)
        for name, (kind, help) in METRICS.items():
            create = (
                meter.create_observable_counter
                if kind == "counter"
                else meter.create_observable_gauge
            )
            unit = "s" if name.endswith("_seconds") else ""
            create(name, [functools.partial(self._observe, name)], unit, help)

    def write(self, poll: Poll, *, troubles: int, now: float) -> None:
        """Keep a poll for the next export; send an event if its verdict has changed.

        Args:
            poll: The poll.
            troubles: Number of divergences and hangs so far.
            now: Seconds since 1970.
        """
        self._samples = tuple(poll_samples(poll, troubles, now))
        if poll.changed and poll.verdict is not None:
            self._send_event(poll)

    def close(self) -> None:
        """Send what is left, for some seconds at most."""
        # Neither provider honours its own limit while an exporter waits for its collector.
        ends = [
            threading.Thread(target=self._meters.shutdown, args=(_LAST_MS,), daemon=True),
            threading.Thread(target=self._logs.shutdown, daemon=True),
        ]
        deadline = time.monotonic() + _LAST_MS / 1e3
        for end in ends:
            end.start()
        for end in ends:
            end.join(max(0.0, deadline - time.monotonic()))

    def _observe(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        return [
            Observation(value, dict(labels)) for own, labels, value in self._samples if own == name
        ]

    def _send_event(self, poll: Poll) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber

        verdict = poll.verdict
        assert verdict is not None
        if poll.in_trouble:
            severity = SeverityNumber.ERROR
        else:
            severity = SeverityNumber.INFO if poll.status == "ok" else SeverityNumber.WARN
        about: dict[str, Any] = {
            "ncclscope.status": poll.status,
            "ncclscope.ranks": len(poll.ranks),
            "ncclscope.ranks.expected": verdict.run.expected,
            "ncclscope.coverage.complete": verdict.coverage.complete,
            "ncclscope.coverage.unseen": [_short(text) for text in verdict.coverage.unseen],
        }
        if (cause := poll.cause) is not None:
            about |= {
                "ncclscope.kind": cause.kind,
                "ncclscope.confidence": cause.confidence,
                "ncclscope.ranks.diverging": list(cause.diverging_ranks),
                "ncclscope.ranks.candidates": list(cause.candidate_ranks),
            }
            if cause.comm is not None:
                about["ncclscope.comm"] = _short(cause.comm.label)
            if cause.seq is not None:
                about["ncclscope.seq"] = cause.seq
        self._logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                severity_number=severity,
                severity_text=severity.name,
                body=_short(verdict.summary),
                attributes=about,
                event_name=f"ncclscope.{poll.status}",
            )
        )


class _OneLine(logging.Handler):
    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        self._warn(f"OTLP: {_short(' '.join(record.getMessage().split()))}")


def _redirect_log(warn: Callable[[str], None]) -> None:
    """Let the SDK's log go to `warn`: on stderr it would break the live view."""
    log = logging.getLogger("opentelemetry")
    log.handlers = [_OneLine(warn)]
    log.propagate = False


def _service() -> dict[str, str]:
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return {} if named else {"service.name": "ncclscope"}


def _short(text: str) -> str:
    return printable(text)[:_TEXT]
