# SPDX-License-Identifier: Apache-2.0
"""The section `[plugins.wamp]`."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from ustreamer.core.routing.access import AccessRules
from ustreamer.core.routing.identity import Identity
from ustreamer.transport_port import (
    ConfigWarning,
    PrivateFile,
    check_sender_rules,
    is_loopback,
)
from ustreamer_wamp import uri
from ustreamer_wamp.connections.outbox import OutboxLimits
from ustreamer_wamp.users import Name, Principal, User, check_prefixes

MIN_ITERATIONS: Final = 600_000
"""OWASP's recommendation for PBKDF2 with SHA-256 of 2023."""
KIND: Final = "wamp"
"""The name of the transport kind, and of the endpoint that the section adds."""

Seconds: TypeAlias = Annotated[int, Meta(ge=1, le=3600)]

_NETWORK: Final = re.compile(
    r"(?P<scheme>ws|wss|rs|rss)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):(?P<port>\d{1,5})(?P<path>/[^\s?#]*)?"
)
_UNIX: Final = re.compile(r"(?P<scheme>ws|rs)\+unix://(?P<path>/[^\s?#]+)")
_MAX_SOCKET_PATH: Final = 107
"""Bytes; one more ends it in the kernel's struct sockaddr_un."""
_FORMS: Final = (
    "ws://host:port/path, wss://..., rs://host:port, rss://..., ws+unix:///path or rs+unix:///path"
)


class ListenAddress(NamedTuple):
    """A listening address: WebSocket (`ws`) or RawSocket, at host and port or at a Unix socket."""

    url: str
    websocket: bool
    tls: bool
    host: str
    port: int
    path: str
    """Of the WebSocket resource; any, if there is none."""
    socket: str
    """Of the Unix socket; "" for a network."""


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Certificate chain and key as PEM files, replaceable at any time; `client_ca`: clients need one, too."""

    certificate: Annotated[Path, Meta(examples=["server.pem"])]
    key: Annotated[Path, Meta(examples=["server.key"])]
    client_ca: Path | None = None


class Place(NamedTuple):
    """Where the sessions are: their authority, that of the streamer, and those that its uSubscription serves."""

    authority: str
    streamer: str
    serves: tuple[str, ...]


class Anonymous(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The topics, by prefix, that anonymous clients may subscribe. Only users may publish.

    `meta_api`: they may read the subscriptions of all clients, by `wamp.subscription.*`.
    """

    subscribe: tuple[str, ...] = ("",)
    role: Name = "anonymous"
    meta_api: bool = False

    def __post_init__(self) -> None:
        check_prefixes("subscribe", self.subscribe)


class WampConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """README.md explains each key. Without `users` and `anonymous` every client is refused."""

    listen: Annotated[str | tuple[str, ...], Meta(examples=["ws://127.0.0.1:8080/ws"])]
    process: bool = True
    realm: Name = "realm1"
    users: tuple[User, ...] = ()
    anonymous: bool | Anonymous = False
    origins: tuple[str, ...] = ()
    page: bool = False
    tls: Tls | None = None
    authority: str = ""
    request_ids: Literal["any", "sequential"] = "any"
    max_sessions: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    max_sessions_per_address: Annotated[int, Meta(ge=1, le=10_000)] = 256
    max_subscriptions: Annotated[int, Meta(ge=1, le=100_000)] = 1024
    max_pattern_topics: Annotated[int, Meta(ge=0, le=100_000)] = 256
    max_connects_per_s: Annotated[int, Meta(ge=1, le=10_000)] = 50
    max_message_bytes: Annotated[int, Meta(ge=512, le=16_777_216)] = 1_048_576
    max_unfinished_bytes: Annotated[int, Meta(ge=1_048_576, le=1 << 32)] = 33_554_432
    max_hello_bytes: Annotated[int, Meta(ge=1024, le=1_048_576)] = 32_768
    max_control_frames_per_s: Annotated[int, Meta(ge=1, le=10_000)] = 10
    max_cpu_percent_per_address: Annotated[int, Meta(ge=1, le=100)] = 25
    max_login_failures: Annotated[int, Meta(ge=1, le=1000)] = 10
    max_login_failures_per_address: Annotated[int, Meta(ge=1, le=10_000)] = 30
    hello_timeout_s: Seconds = 10
    message_timeout_s: Seconds = 30
    ping_interval_s: Seconds = 20
    pong_timeout_s: Seconds = 20
    outbox: OutboxLimits = OutboxLimits()
    access: AccessRules = ()

    def __post_init__(self) -> None:
        for where, url in zip(self.listen_keys, self.urls, strict=True):
            try:
                listen = parse_listen(url)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
            if listen.tls and self.tls is None:
                raise ValueError(f"{where}: {url!r} needs tls = {{ certificate = ..., key = ... }}")
        if not self.urls:
            raise ValueError(f"listen: expected at least one of {_FORMS}")
        if trouble := uri.problem(self.realm):
            raise ValueError(f"realm: {trouble}")
        if self.max_unfinished_bytes < 2 * self.max_message_bytes:
            raise ValueError("max_unfinished_bytes: expected at least twice max_message_bytes")
        self._check_users()
        check_sender_rules(self.access, self.known_identities())

    def known_identities(self) -> Sequence[Identity]:
        """The users; only they may publish."""
        return [Identity(each.authid, each.role) for each in self.users]

    def _check_users(self) -> None:
        seen: set[str] = set()
        for index, user in enumerate(self.users):
            if user.authid in seen:
                raise ValueError(f"users[{index}].authid: {user.authid!r} is there twice")
            seen.add(user.authid)
            if user.public_keys and find_spec("cryptography") is None:
                raise ValueError(
                    f"users[{index}].public_keys: cryptosign needs the package cryptography "
                    "(install the wheel file of ustreamer-wamp[cryptosign]: docs/install.md)"
                )

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.listen,) if isinstance(self.listen, str) else self.listen

    @property
    def listen_keys(self) -> tuple[str, ...]:
        """The place of each of `urls` in the section."""
        return (
            ("listen",)
            if isinstance(self.listen, str)
            else tuple(f"listen[{n}]" for n in range(len(self.listen)))
        )

    def private_files(self) -> Sequence[PrivateFile]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        return [] if self.tls is None else [PrivateFile("tls.key", self.tls.key)]

    def warnings(self) -> Sequence[ConfigWarning]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        found = []
        if self.anonymous is not False:
            text = "any host that reaches this address can subscribe without authentication: anonymous is on"
            advice = "listen on a loopback address, or set anonymous = false and add [[plugins.wamp.users]]"
            found = [
                ConfigWarning(key, text, advice)
                for key, each in zip(self.listen_keys, self.listeners, strict=True)
                if not each.socket and not is_loopback(each.host)
            ]
        found += [
            ConfigWarning(
                f"users[{index}].salt",
                f"{user.iterations} iterations of PBKDF2 do not protect a password: {MIN_ITERATIONS} are recommended",
                f"set iterations = {MIN_ITERATIONS} here and at the client, or use public_keys",
            )
            for index, user in enumerate(self.users)
            if user.salt and user.iterations < MIN_ITERATIONS
        ]
        if self.tls is not None and not any(each.tls for each in self.listeners):
            text = "is not used: no address in listen begins with wss:// or rss://"
            found.append(ConfigWarning("tls", text, "leave tls out"))
        if self.max_sessions_per_address > self.max_sessions:
            text = f"{self.max_sessions_per_address} never applies: max_sessions, {self.max_sessions}, is reached before"
            advice = f"choose at most {self.max_sessions}"
            found.append(ConfigWarning("max_sessions_per_address", text, advice))
        return found

    @property
    def listeners(self) -> tuple[ListenAddress, ...]:
        return tuple(map(parse_listen, self.urls))

    @property
    def anonymous_principal(self) -> Principal | None:
        """The principal of anonymous sessions; None if they are refused."""
        if self.anonymous is False:
            return None
        allowed = Anonymous() if self.anonymous is True else self.anonymous
        return Principal(
            "anonymous", allowed.role, "anonymous", "static", allowed.subscribe, (), allowed.meta_api
        )


def parse_listen(url: str) -> ListenAddress:
    """Parse an address of `listen`. Raises ValueError with the expected form."""
    if match := _UNIX.fullmatch(url):
        size = len(match["path"].encode())
        if size > _MAX_SOCKET_PATH:
            raise ValueError(
                f"{url!r}: the path of a socket has {size} bytes, expected at most {_MAX_SOCKET_PATH}"
            )
        return ListenAddress(url, match["scheme"] == "ws", False, "", 0, "", match["path"])
    match = _NETWORK.fullmatch(url)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError(f"{url!r} is none of {_FORMS}")
    scheme, path = match["scheme"], match["path"] or ""
    if scheme.startswith("r") and path not in ("", "/"):
        raise ValueError(
            f"{url!r}: a RawSocket has no path, expected {scheme}://{match['host']}:{match['port']}"
        )
    host = match["host"].strip("[]")
    return ListenAddress(
        url, scheme.startswith("w"), scheme.endswith("ss"), host, int(match["port"]), path, ""
    )
