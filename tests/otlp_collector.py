# SPDX-License-Identifier: Apache-2.0
"""A collector of OTLP over HTTP on loopback, which decodes the spans that it gets."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.rigs.entities import Inbox
from tests.e2e.rigs.ports import tcp_ports


class OtlpCollector:
    """`answers` are used once each, in order: a status, headers, and the body. Afterwards all is accepted."""

    def __init__(self, port: int = 0) -> None:
        self.port = port or tcp_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}/v1/traces"
        self.spans: Inbox[Span] = Inbox("spans")
        self.requests: Inbox[ExportTraceServiceRequest] = Inbox("requests of OTLP")
        self.headers: list[Mapping[str, str]] = []
        self.answers: list[tuple[int, Mapping[str, str], bytes]] = []

    @contextmanager
    def running(
        self, wrap: Callable[[ThreadingHTTPServer], None] = lambda server: None
    ) -> "Iterator[OtlpCollector]":
        """Serve until the end of the block. `wrap` may put TLS around the socket."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, headers, answer = collector._take(self.path, dict(self.headers), body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        server.daemon_threads = True
        wrap(server)
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _take(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        self.headers.append(headers)
        if path != "/v1/traces" or headers.get("Content-Type") != "application/x-protobuf":
            return 404, {}, b""
        request = ExportTraceServiceRequest.FromString(body)
        status, extra, answer = self.answers.pop(0) if self.answers else (200, {}, accepted())
        if status == 200:
            for span in spans_of(request):
                self.spans.append(span)
        self.requests.append(request)
        return status, extra, answer


def spans_of(request: ExportTraceServiceRequest) -> list[Span]:
    return [span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans]


def accepted(rejected: int = 0, reason: str = "") -> bytes:
    """The body of an answer with status 200."""
    answer = ExportTraceServiceResponse()
    if rejected or reason:
        answer.partial_success.rejected_spans = rejected
        answer.partial_success.error_message = reason
    return answer.SerializeToString()


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, str | int]:
    """The attributes of a span or a resource."""
    return {
        each.key: each.value.string_value if each.value.HasField("string_value") else each.value.int_value
        for each in pairs
    }
