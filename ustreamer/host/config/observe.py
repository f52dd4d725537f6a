# SPDX-License-Identifier: Apache-2.0
"""The section `[observe]`: where the streamer serves its metrics and its health. Absent: nowhere."""

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

MIN_TOKEN: Final = 16
"""Characters. `head -c 24 /dev/urandom | base64` has 32."""
_MAX_TOKEN_FILE: Final = 4_096
_OTHERS: Final = 0o077
_FORM: Final = "an IP address and a port, such as 127.0.0.1:9464 or [::1]:9464"


class ObserveAddress(NamedTuple):
    """A listening address. Port 0 is any free port."""

    host: str
    port: int


class TokenConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the token is: in an environment variable, or in a file of its own. It is never in the configuration.

    A relative `file` starts at the directory of the configuration file.
    """

    env: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        if bool(self.env) is bool(self.file):
            raise ValueError('expected one of env and file, such as token = { env = "USTREAMER_TOKEN" }')

    def read(self, environment: Mapping[str, str], base: Path) -> str:
        """The token; a relative file starts at `base`.

        Raises ValueError with the place and what would be right, and never with the token.
        """
        if self.env:
            place, text = f"env: the variable {self.env}", environment.get(self.env, "")
        else:
            place, text = f"file: {self.file}", _read_private(base / self.file)
        token = text.strip()
        if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError(
                f"{place} has no token: expected {MIN_TOKEN} or more printable ASCII characters without spaces"
            )
        return token


def _read_private(path: Path) -> str:
    try:
        if path.is_dir():
            raise ValueError(f"file: {path} is a directory: expected a file with the token")
        if path.stat().st_mode & _OTHERS:
            raise ValueError(f"file: {path} can be read by other users: chmod 600 {path}")
        return path.read_bytes()[:_MAX_TOKEN_FILE].decode(errors="replace")
    except OSError as error:
        raise ValueError(f"file: {path}: {error.strerror}") from error


class ObserveConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`listen` is a loopback address unless `allow_remote` is set. `top` bounds the series of targets and subscribers.

    `latency` adds histograms, for some work at each message. `page` serves the page for operators. Beyond loopback, and
    for a redrive, the page needs a `token`.
    """

    listen: Annotated[str, Meta(examples=["127.0.0.1:9464"])]
    allow_remote: bool = False
    top: Annotated[int, Meta(ge=0, le=5_000)] = 20
    latency: bool = False
    page: bool = False
    token: TokenConfig | None = None

    def __post_init__(self) -> None:
        try:
            address = parse_listen(self.listen)
        except ValueError as error:
            raise ValueError(f"listen: {error}") from error
        is_loopback = ip_address(address.host).is_loopback
        if self.page and self.token is None and not is_loopback:
            raise ValueError(
                f"page: {self.listen!r} is reachable from other machines, so the page needs a token: "
                'add token = { env = "USTREAMER_TOKEN" }, or { file = "/etc/ustreamer/token" }'
            )
        if self.token is not None and not self.page:
            raise ValueError("token: is of the page only: add page = true")
        if not (self.allow_remote or is_loopback):
            raise ValueError(
                f"listen: {self.listen!r} is reachable from other machines, without authentication: "
                "use 127.0.0.1, or add allow_remote = true"
            )
        if not _is_installed("prometheus_client"):
            raise ValueError(
                "listen: metrics need the package prometheus-client "
                "(install the wheel file of ustreamer[observe]: docs/install.md)"
            )

    @property
    def address(self) -> ObserveAddress:
        return parse_listen(self.listen)


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec  # a streamer without the section does not need it

    return find_spec(package) is not None


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
