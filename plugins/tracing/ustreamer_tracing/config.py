# SPDX-License-Identifier: Apache-2.0
"""The section `[plugins.tracing]`. Imports nothing of OpenTelemetry, so `check` runs without it."""

import re
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from ustreamer.transport_port import is_loopback

DEFAULT_COLLECTOR: Final = "http://127.0.0.1:4318/v1/traces"
_FORM: Final = f"expected OTLP over HTTP, such as {DEFAULT_COLLECTOR}"
_PORTS: Final = {"http": 80, "https": 443}
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


class CollectorAddress(NamedTuple):
    """Where spans are sent; `tls`: the certificate is verified."""

    tls: bool
    host: str
    port: int
    path: str


class TracingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The collector and the limits. `header` is sent with the value `secret`, if there is one."""

    collector: str = DEFAULT_COLLECTOR
    ca: Path | None = None
    header: str = "Authorization"
    secret: Annotated[str, Meta(min_length=1, max_length=4_096)] | None = None
    queue_spans: Annotated[int, Meta(ge=16, le=100_000)] = 2_048
    flush_ms: Annotated[int, Meta(ge=50, le=60_000)] = 1_000
    timeout_ms: Annotated[int, Meta(ge=100, le=60_000)] = 5_000

    def __post_init__(self) -> None:
        address = self.address
        if not _HEADER.fullmatch(self.header):
            raise ValueError(
                f"header: {self.header!r}: expected letters, digits and hyphens, such as api-key"
            )
        if self.secret is not None and not _VISIBLE.fullmatch(self.secret):
            raise ValueError("secret: expected visible ASCII characters")
        if self.ca is not None and not address.tls:
            raise ValueError(f"ca: {self.collector!r} is not encrypted; write https://")
        if self.secret is not None and not address.tls and not is_loopback(address.host):
            raise ValueError(
                f"secret: {self.collector!r} is not encrypted and not on this machine; write https://"
            )

    @property
    def address(self) -> CollectorAddress:
        """The parts of `collector`. Raises ValueError."""
        try:
            url = urlsplit(self.collector)
            default_port = _PORTS[url.scheme]
            port = url.port or default_port
        except (KeyError, ValueError):
            raise ValueError(f"collector: {self.collector!r}: {_FORM}") from None
        is_plain = self.collector.isascii() and self.collector.isprintable() and " " not in self.collector
        if not url.hostname or not is_plain or url.username is not None or url.query or url.fragment:
            raise ValueError(f"collector: {self.collector!r}: {_FORM}")
        return CollectorAddress(url.scheme == "https", url.hostname, port, url.path or "/v1/traces")
