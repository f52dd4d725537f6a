# SPDX-License-Identifier: Apache-2.0
"""The client of a collector: what it sends, and whom it sends it to."""

import ssl
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from socket import create_server
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from ustreamer_tracing.collector import CollectorClient, ExportResult
from ustreamer_tracing.config import TracingConfig

from tests.e2e.rigs.certificates import make_certificates
from tests.otlp_collector import OtlpCollector

BODY = ExportTraceServiceRequest().SerializeToString()


def test_the_secret_is_sent_in_its_header() -> None:
    with OtlpCollector().running() as collector:
        client = CollectorClient(TracingConfig(collector=collector.url, header="api-key", secret="it is me"))
        assert client.export(BODY, 0) == ExportResult()
    assert collector.headers[0]["api-key"] == "it is me"


def test_without_a_secret_no_such_header_is_sent() -> None:
    with OtlpCollector().running() as collector:
        CollectorClient(TracingConfig(collector=collector.url)).export(BODY, 0)
    assert "Authorization" not in collector.headers[0]


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n"], ids=["closed", "nonsense"])
def test_a_server_that_is_no_collector_is_tried_again(answer: bytes) -> None:
    with create_server(("127.0.0.1", 0)) as server:
        client = CollectorClient(TracingConfig(collector=f"http://127.0.0.1:{server.getsockname()[1]}"))

        def answer_once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = Thread(target=answer_once)
        thread.start()
        result = client.export(BODY, 3)
        thread.join()
    assert result.try_again
    assert result.reason


def test_a_collector_that_does_not_answer_is_given_up_in_time() -> None:
    with create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        result = CollectorClient(TracingConfig(collector=url, timeout_ms=100)).export(BODY, 3)
    assert result == ExportResult(try_again=True, reason="timed out")


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[OtlpCollector, Path]]:
    """A collector with TLS, and the certificate of its authority."""
    made = make_certificates(tmp_path / "tls", "collector")

    def wrap(server: ThreadingHTTPServer) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made / "collector.pem", made / "collector.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)

    with OtlpCollector().running(wrap) as running:
        running.url = running.url.replace("http://127.0.0.1", "https://localhost")
        yield running, made / "ca.pem"


def test_the_certificate_of_a_collector_is_verified(encrypted: tuple[OtlpCollector, Path]) -> None:
    collector, ca = encrypted
    unknown = CollectorClient(TracingConfig(collector=collector.url)).export(BODY, 0)
    assert "certificate verify failed" in unknown.reason
    assert not collector.requests.items()
    assert CollectorClient(TracingConfig(collector=collector.url, ca=ca)).export(BODY, 0) == ExportResult()
