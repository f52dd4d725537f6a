# SPDX-License-Identifier: Apache-2.0
"""The client of a collector: OTLP over HTTP with protobuf, one request at a time.

opentelemetry's own exporter brings ten further packages, one of them (certifi, MPL-2.0) without a permissive licence;
see docs/decisions/0038-tracing.md. So the standard library sends the request.
"""

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ustreamer_tracing.config import TracingConfig

_PROTOBUF: Final = "application/x-protobuf"
_TRY_AGAIN: Final = frozenset({429, 502, 503, 504})
"""The status codes after which a client of OTLP may send the same again."""
_MAX_ANSWER: Final = 65_536
_MAX_REASON: Final = 200


class ExportResult(NamedTuple):
    """The answer of the collector.

    With `try_again` it accepted nothing, and `retry_after_s` is the least wait that it asks for. Otherwise `refused`
    spans are lost. `reason` is "" if it accepted all.
    """

    try_again: bool = False
    refused: int = 0
    reason: str = ""
    retry_after_s: float = 0


class CollectorClient:
    """Sends the requests of one exporter. Each request has a connection of its own."""

    def __init__(self, config: TracingConfig) -> None:
        self._address = config.address
        self._timeout_s = config.timeout_ms / 1000
        self._headers = {"Content-Type": _PROTOBUF, "User-Agent": "ustreamer-tracing"}
        if config.secret is not None:
            self._headers[config.header] = config.secret
        self._ca = config.ca
        self._tls: ssl.SSLContext | None = None

    def export(self, body: bytes, spans: int) -> ExportResult:
        """Send an encoded request with so many spans. Never raises for the network or for a wrong answer."""
        try:
            connection = self._connection()
            try:
                connection.request("POST", self._address.path, body, self._headers)
                response = connection.getresponse()
                answer = response.read(_MAX_ANSWER)
            finally:
                connection.close()
        except (OSError, HTTPException) as error:
            return ExportResult(try_again=True, reason=_line(str(error) or type(error).__name__))
        if response.status == 200:
            return _accepted(answer)
        reason = _line(f"{response.status} {response.reason}")
        if response.status in _TRY_AGAIN:
            asked = response.getheader("Retry-After", "")
            return ExportResult(
                try_again=True, reason=reason, retry_after_s=float(asked) if asked.isdecimal() else 0
            )
        return ExportResult(refused=spans, reason=reason)

    def _connection(self) -> HTTPConnection:
        _, host, port, _ = self._address
        if not self._address.tls:
            return HTTPConnection(host, port, timeout=self._timeout_s)
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._ca)
        return HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)


def _accepted(answer: bytes) -> ExportResult:
    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return ExportResult()  # the status code decides
    return ExportResult(refused=max(0, partial.rejected_spans), reason=_line(partial.error_message))


def _line(text: str) -> str:
    """A text of others, for a log line."""
    return "".join(each if each.isprintable() else " " for each in text[:_MAX_REASON])
