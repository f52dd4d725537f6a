# SPDX-License-Identifier: Apache-2.0
"""The section `[observe]`: where the streamer serves its metrics and its health. Absent: nowhere."""

from importlib.util import find_spec
from ipaddress import ip_address
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

_FORM: Final = "an IP address and a port, such as 127.0.0.1:9464 or [::1]:9464"


class ObserveAddress(NamedTuple):
    """A listening address. Port 0 is any free port."""

    host: str
    port: int


class ObserveConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`listen` is a loopback address unless `allow_remote` is set. `top` bounds the series of targets and subscribers."""

    listen: Annotated[str, Meta(examples=["127.0.0.1:9464"])]
    allow_remote: bool = False
    top: Annotated[int, Meta(ge=0, le=5_000)] = 20

    def __post_init__(self) -> None:
        try:
            address = parse_listen(self.listen)
        except ValueError as error:
            raise ValueError(f"listen: {error}") from error
        if not (self.allow_remote or ip_address(address.host).is_loopback):
            raise ValueError(
                f"listen: {self.listen!r} is reachable from other machines, without authentication: "
                "use 127.0.0.1, or add allow_remote = true"
            )
        if find_spec("prometheus_client") is None:
            raise ValueError(
                "listen: metrics need the package prometheus-client (pip install 'ustreamer[observe]')"
            )

    @property
    def address(self) -> ObserveAddress:
        return parse_listen(self.listen)


def parse_listen(text: str) -> ObserveAddress:
    """Parse an address of `listen`. Raises ValueError with the expected form."""
    host, _, port = text.rpartition(":")
    inside = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        version = ip_address(inside).version
    except ValueError:
        raise ValueError(f"{text!r} is not {_FORM}") from None
    if not (port.isascii() and port.isdecimal()) or int(port) > 65_535 or (version == 6) is (inside == host):
        raise ValueError(f"{text!r} is not {_FORM}")
    return ObserveAddress(inside, int(port))
