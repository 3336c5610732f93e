"""A collector that takes OTLP over HTTP, on a thread of its own."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(ThreadingHTTPServer):
    """A context manager; `bodies` by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.bodies: dict[str, list[bytes]] = {}
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def spans(self, trace_id: int) -> set[tuple[str, str]]:
        """The service and the name of each span of a trace."""
        resources = [
            each
            for body in self.bodies.get("/v1/traces", ())
            for each in ExportTraceServiceRequest.FromString(body).resource_spans
        ]
        return {
            (attribute.value.string_value, span.name)
            for each in resources
            for attribute in each.resource.attributes
            if attribute.key == "service.name"
            for scope in each.scope_spans
            for span in scope.spans
            if int.from_bytes(span.trace_id) == trace_id
        }


class _Taker(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        assert isinstance(self.server, Collector)
        self.server.bodies.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
