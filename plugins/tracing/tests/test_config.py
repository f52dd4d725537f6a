# SPDX-License-Identifier: Apache-2.0
"""The section `[plugins.tracing]`: what is refused, and why."""

import msgspec
import pytest
from ustreamer_tracing.config import CollectorAddress, TracingConfig

WRONG = [
    (
        {"collector": "127.0.0.1:4318"},
        "collector: '127.0.0.1:4318': expected OTLP over HTTP, such as http://127.0.0.1:4318",
    ),
    ({"collector": "ftp://127.0.0.1/"}, "expected OTLP over HTTP"),
    ({"collector": "grpc://127.0.0.1:4317"}, "expected OTLP over HTTP"),
    ({"collector": "http:///v1/traces"}, "expected OTLP over HTTP"),
    ({"collector": "http://127.0.0.1:99999"}, "expected OTLP over HTTP"),
    ({"collector": "http://user@127.0.0.1"}, "expected OTLP over HTTP"),
    ({"collector": "http://127.0.0.1/v1 traces"}, "expected OTLP over HTTP"),
    ({"collector": "http://127.0.0.1/?a=1"}, "expected OTLP over HTTP"),
    ({"ca": "ca.pem"}, "ca: 'http://127.0.0.1:4318/v1/traces' is not encrypted; write https://"),
    ({"header": "api key"}, "header: 'api key': expected letters, digits and hyphens"),
    ({"secret": "line\nX-Other: 1"}, "secret: expected visible ASCII characters"),
    ({"secret": "s", "collector": "http://10.0.0.1:4318"}, "is not encrypted and not on this machine"),
    ({"queue_spans": 1}, "`int` >= 16"),
    ({"endpoint": "x"}, "unknown field `endpoint`"),
]


@pytest.mark.parametrize(("section", "text"), WRONG)
def test_a_wrong_section_is_refused_with_the_reason(section: dict[str, object], text: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=text):
        msgspec.convert(section, TracingConfig, dec_hook=lambda kind, value: kind(value))


@pytest.mark.parametrize(
    ("collector", "address"),
    [
        ("http://127.0.0.1:4318/v1/traces", (False, "127.0.0.1", 4318, "/v1/traces")),
        ("https://collector.example", (True, "collector.example", 443, "/v1/traces")),
        ("http://[::1]:4318/otlp/v1/traces", (False, "::1", 4318, "/otlp/v1/traces")),
    ],
)
def test_the_address_of_the_collector(collector: str, address: tuple[bool, str, int, str]) -> None:
    assert TracingConfig(collector=collector).address == CollectorAddress(*address)
