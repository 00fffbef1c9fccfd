"""A receiver of OTLP over HTTP: it reads requests with OpenTelemetry's own messages."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

__all__ = ["Received", "receiver"]


def value_of(value: Any) -> Any:
    """Return a value of OTLP as Python's."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None


def attributes_of(message: Any) -> dict[str, Any]:
    return {one.key: value_of(one.value) for one in message.attributes}


class Received:
    """What has come so far.

    Attributes:
        url: The endpoint.
        samples: Name, attributes and value of each data point, in the order in which they came.
        kinds: ``gauge`` or ``sum`` by the name of the metric.
        events: Log records.
        resources: Attributes of their resources.
    """

    def __init__(self) -> None:
        self.url = ""
        self.samples: list[tuple[str, dict[str, Any], float]] = []
        self.kinds: dict[str, str] = {}
        self.events: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def wait_for(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until enough has come."""
        with self._changed:
            assert self._changed.wait_for(holds, seconds), (self.kinds, self.events)

    def value(self, name: str, **about: str) -> float | None:
        """Return the newest value of a metric with these attributes among others."""
        for own, attributes, value in reversed(self.samples):
            if own == name and about.items() <= attributes.items():
                return value
        return None

    def take_metrics(self, body: bytes) -> bytes:
        request = ExportMetricsServiceRequest.FromString(body)
        with self._changed:
            for resource in request.resource_metrics:
                self.resources.append(attributes_of(resource.resource))
                for metric in (one for scope in resource.scope_metrics for one in scope.metrics):
                    kind = metric.WhichOneof("data")
                    self.kinds[metric.name] = kind
                    for point in getattr(metric, kind).data_points:
                        value = getattr(point, point.WhichOneof("value"))
                        self.samples.append((metric.name, attributes_of(point), value))
            self._changed.notify_all()
        return ExportMetricsServiceResponse().SerializeToString()

    def take_logs(self, body: bytes) -> bytes:
        request = ExportLogsServiceRequest.FromString(body)
        with self._changed:
            for resource in request.resource_logs:
                self.resources.append(attributes_of(resource.resource))
                for scope in resource.scope_logs:
                    self.events += scope.log_records
            self._changed.notify_all()
        return ExportLogsServiceResponse().SerializeToString()


@contextlib.contextmanager
def receiver() -> Iterator[Received]:
    """Serve on a port of this machine."""
    received = Received()
    takes = {"/v1/metrics": received.take_metrics, "/v1/logs": received.take_logs}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            answer = takes[self.path](body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_words: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
