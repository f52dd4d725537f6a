# SPDX-License-Identifier: Apache-2.0
"""Zenoh's endpoints as text: protocol/address?metadata#config. Imports no Zenoh."""

import re
import socket
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from ustreamer.transport_port import BoundAddress

IP_PROTOCOLS: Final[Mapping[str, Literal["tcp", "udp"]]] = {
    "tcp": "tcp",
    "tls": "tcp",
    "ws": "tcp",
    "udp": "udp",
    "quic": "udp",
}
"""Zenoh's protocols with an address host:port, and the protocol of the port."""
ENCRYPTED: Final = frozenset({"tls", "quic"})
_BOUND_TO_INTERFACE: Final = frozenset({"tcp", "tls", "udp", "quic"})
_OTHER_PROTOCOLS: Final = frozenset({"unixsock-stream"})
"""Zenoh's other protocols, as far as the package eclipse-zenoh has them."""
_LOCATOR: Final = re.compile(r"([a-z0-9_-]+)/([^?#]+)(?:\?([^#]*))?(?:#(.*))?")
_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_FORM: Final = "expected protocol/address, such as tcp/127.0.0.1:7447"
_MAX_SOCKET_PATH: Final = 107
"""Bytes of the path of a Unix socket; one more ends it in the kernel's struct sockaddr_un."""
_U32: Final = r"0*\d{1,9}|0*[1-3]\d{9}|0*4[01]\d{8}"  # a little less than 2^32
_METADATA: Final = {
    "rel": (r"[01]", "0 or 1"),
    "prio": (r"[0-7]-[0-7]", "two priorities of 0 to 7, such as 1-3"),
    "multistream": (r".*", ""),
    "mixed_rel": (r".*", ""),
}
"""The keys of metadata that Zenoh knows. At another value of `rel` it panics; with another `prio` no link comes up."""
_CONFIG: Final = {
    "so_rcvbuf": (_U32, "a number of bytes"),
    "so_sndbuf": (_U32, "a number of bytes"),
    "dscp": (r"0x[0-9A-Fa-f]{1,2}|\d{1,3}", "a number of 0 to 63"),
}
"""Keys of config whose values Zenoh parses when it opens a session. The others are those of TLS and of each protocol."""


class Locator(msgspec.Struct, frozen=True):
    """A Zenoh endpoint. `port` is None for a protocol without ports, whose `host` is the path of a socket."""

    protocol: str
    host: str
    port: int | None

    def bound_address(self, key: str) -> BoundAddress:
        """The address of a listener; `key` is its place in the section."""
        if self.port is None:
            return BoundAddress(key, "unix", self.host)
        return BoundAddress(key, IP_PROTOCOLS[self.protocol], self.host, self.port)


def parse_locator(text: str, lowest_port: int) -> Locator:
    """Parse a Zenoh endpoint. Raises ValueError with the expected form."""
    match = _LOCATOR.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no Zenoh endpoint: {_FORM}")
    protocol, address = match[1], match[2]
    if protocol not in IP_PROTOCOLS and protocol not in _OTHER_PROTOCOLS:
        names = ", ".join(sorted({*IP_PROTOCOLS, *_OTHER_PROTOCOLS}))
        raise ValueError(f"{text!r}: {protocol!r} is no protocol of Zenoh (have: {names}): {_FORM}")
    check_parameters(text)
    if protocol in _OTHER_PROTOCOLS:
        size = len(address.encode())
        if size > _MAX_SOCKET_PATH:
            raise ValueError(
                f"{text!r}: the path of a socket has {size} bytes, expected at most {_MAX_SOCKET_PATH}"
            )
        return Locator(protocol, address, None)
    inner = _HOST_PORT.fullmatch(address)
    if inner is None:
        raise ValueError(f"{text!r}: {address!r} is no host and port: {_FORM}")
    if not lowest_port <= int(inner[2]) <= 0xFFFF:
        raise ValueError(f"{text!r}: port {inner[2]} is not in {lowest_port} to 65535: {_FORM}")
    return Locator(protocol, inner[1].strip("[]"), int(inner[2]))


def check_parameters(text: str) -> None:
    """Check the metadata and the config of an endpoint, of which Zenoh accepts any form. Raises ValueError."""
    match = _LOCATOR.fullmatch(text)
    if match is None:
        return
    for sign, part, known in (("?", match[3], _METADATA), ("#", match[4], _CONFIG)):
        if part == "":
            raise ValueError(f"{text!r}: nothing follows the {sign}: leave the {sign} out")
        for parameter in (part or "").split(";"):
            key, _, value = parameter.partition("=")
            pattern, expected = known.get(key, (r".*", ""))
            if part and sign == "?" and key not in known:
                names = "rel=0, rel=1 or prio=1-3"
                raise ValueError(f"{text!r}: {key!r} is no metadata of Zenoh: expected {names}")
            if not re.fullmatch(pattern, value):
                raise ValueError(f"{text!r}: {key} is {value!r}: expected {expected}")


def missing_interface(text: str) -> str:
    """The first network interface in `#iface=` that this machine has not; empty if it has all. WebSockets ignore it."""
    match = _LOCATOR.fullmatch(text)
    if match is None or match[1] not in _BOUND_TO_INTERFACE:
        return ""
    parameters = dict(each.partition("=")[::2] for each in (match[4] or "").split(";"))
    known = {name for _, name in socket.if_nameindex()}
    names = parameters.get("iface", "").split(",")
    return next((each for each in names if each and each not in known), "")
