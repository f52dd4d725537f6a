# SPDX-License-Identifier: Apache-2.0
"""`[endpoints.<name>] transport = "zenoh"`. Imports no Zenoh, so `check` runs where Zenoh is not installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import msgspec

from ustreamer.core.routing.identity import Identity
from ustreamer.transport_port import (
    BoundAddress,
    ConfigWarning,
    EndpointConfig,
    NamedPattern,
    is_loopback,
)
from ustreamer.transports.zenoh.locators import ENCRYPTED, parse_locator
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority

DEFAULT_RETRANSMIT_BYTES: Final = 16_000_000
MAX_IDENTITIES: Final = 256
LEASE_MS: Final = 10_000
"""The lease of a Zenoh session without a configuration file."""


class ZenohIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node that Zenoh authenticates, by the common name of its certificate or as a user.

    `sources` are patterns of the entities that it may send from. No other node may send from these.
    """

    certificate: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    user: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    sources: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, examples=[["//cloud/FFFFFFFF/FF/FFFF"]])]

    def __post_init__(self) -> None:
        if (self.certificate is None) is (self.user is None):
            raise ValueError("expected either certificate, a common name, or user")
        for index, text in enumerate(self.sources):
            try:
                pattern = UUri.parse(text)
            except UStatusError as error:
                raise ValueError(f"sources[{index}]: {error.message}") from error
            if not pattern.authority_name:
                raise ValueError(f"sources[{index}]: {text!r} names no authority; write //<authority>{text}")

    @property
    def name(self) -> str:
        return self.certificate or self.user or ""

    @property
    def patterns(self) -> tuple[UUri, ...]:
        return tuple(UUri.parse(text) for text in self.sources)


class ZenohEndpoint(EndpointConfig, frozen=True, kw_only=True):
    """A Zenoh session: a Zenoh configuration file (`config`), the keys below, or the keys on top of the file.

    Without a file, the defaults are: mode "peer", no listening address, no connection, no scouting. With a file, absent
    keys keep the values of the file.

    `queue` bounds the messages between Zenoh's thread and ours per listener filter. A full queue slows the sender down.

    `retransmit_ms`: messages sent within this time before a route lost its subscribers are sent again when the subscribers
    are back, if the link may have lost them. Answered requests are not sent again; 0 disables it. It should be longer
    than the lease of the nodes, after which an outage is detected. `retransmit_bytes` bounds the memory for it; while
    nodes may be frozen, it is twice as much.

    `max_publishers` bounds the declared Zenoh publishers, one per topic or address pair and priority (4 kB each). There
    are up to 4 096 more while their messages may not have arrived.

    `receipts`: give receipts to senders that expect them, wait for those of streamers that give them, and drop copies
    (docs/decisions/0031-receipts.md). It needs the retransmit buffer.

    `peers` lists the authorities of streamers on this network that are trusted to forward what they announce, even if
    they are not visible on the other side. False: neither detect peers nor announce this streamer.

    `identities` are the nodes that may send at all. The file `config` makes Zenoh authenticate them.
    """

    config: Path | None = None
    mode: Literal["peer", "client", "router"] | None = None
    listen: tuple[str, ...] | None = None
    connect: tuple[str, ...] | None = None
    scouting: bool | None = None
    retransmit_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] = 15_000
    retransmit_bytes: Annotated[int, msgspec.Meta(ge=1)] = DEFAULT_RETRANSMIT_BYTES
    receipts: bool = False
    queue: Annotated[int, msgspec.Meta(ge=1024, le=4096)] = 1024
    peers: tuple[str, ...] | bool = True
    max_publishers: Annotated[int, msgspec.Meta(ge=16, le=131_072)] = 16_384
    identities: Annotated[tuple[ZenohIdentity, ...], msgspec.Meta(max_length=MAX_IDENTITIES)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_identities()
        for key, locators, lowest in (("listen", self.listen, 0), ("connect", self.connect, 1)):
            for index, text in enumerate(locators or ()):
                try:
                    parse_locator(text, lowest)
                except ValueError as error:
                    raise ValueError(f"{key}[{index}]: {error}") from error
        for authority in () if isinstance(self.peers, bool) else self.peers:
            _check_peer_authority(authority)
        if self.config is None:
            self._check_without_file()
        if self.receipts and not self.retransmit_ms:
            raise ValueError(
                "receipts needs retransmit_ms: what has no receipt is sent again from that buffer"
            )
        if self.config is None and not (self.listen or self.connect or self.scouting):
            place, verb = ("", "add") if self.listen is None else ("listen: ", "write")
            raise ValueError(
                f"{place}a Zenoh endpoint without config, listen, connect and scouting has no connection; "
                f'{verb} listen = ["tcp/127.0.0.1:7447"]'
            )

    def in_force(self) -> Self:
        """Without a Zenoh configuration file no default of Zenoh applies; with one, absent keys keep its values."""
        if self.config is not None:
            return self
        return msgspec.structs.replace(
            self,
            mode=self.mode or "peer",
            listen=self.listen or (),
            connect=self.connect or (),
            scouting=bool(self.scouting),
        )

    def _check_identities(self) -> None:
        if self.identities and self.config is None:
            raise ValueError(
                "identities needs config: a Zenoh configuration file that requires certificates or users"
            )
        seen: set[str] = set()
        for index, each in enumerate(self.identities):
            if each.name in seen:
                raise ValueError(f"identities[{index}]: {each.name!r} is there twice")
            seen.add(each.name)

    def known_identities(self) -> Sequence[Identity] | None:
        return [Identity(each.name) for each in self.identities] or None

    def identities_of(self, source: UUri) -> frozenset[Identity] | None:
        if not self.identities:
            return None
        return frozenset(
            Identity(each.name)
            for each in self.identities
            if any(pattern.matches(source) for pattern in each.patterns)
        )

    def patterns(self) -> Sequence[NamedPattern]:
        found = [
            NamedPattern(f"identities[{index}].sources[{number}]", pattern)
            for index, each in enumerate(self.identities)
            for number, pattern in enumerate(each.patterns)
        ]
        return [*super().patterns(), *found]

    def _check_without_file(self) -> None:
        """Check what Zenoh refuses at the start, unless a Zenoh configuration file gives the missing settings."""
        if self.mode == "client" and not (self.connect or self.scouting):
            place, verb = ("mode", "add") if self.connect is None else ("connect", "write")
            raise ValueError(
                f"{place}: a Zenoh client without connect and scouting finds no router; "
                f'{verb} connect = ["tcp/127.0.0.1:7447"]'
            )
        for index, text in enumerate(self.listen or ()):
            if parse_locator(text, 0).protocol in ENCRYPTED and "#" not in text:
                raise ValueError(
                    f"listen[{index}]: {text!r} needs a certificate: set config to a Zenoh configuration file with it"
                )

    def bound_addresses(self) -> Sequence[BoundAddress]:
        """The addresses of `listen`. Those in a Zenoh configuration file are not read."""
        return [
            parse_locator(text, 0).bound_address(f"listen[{index}]")
            for index, text in enumerate(self.listen or ())
        ]

    def remote_key(self) -> str:
        """A Zenoh configuration file counts, because it is not read here."""
        for key, locators in (("listen", self.listen), ("connect", self.connect)):
            for index, text in enumerate(locators or ()):
                locator = parse_locator(text, 0)
                if locator.port is not None and not is_loopback(locator.host):
                    return f"{key}[{index}]"
        if self.scouting:
            return "scouting"
        file_decides = None in (self.listen, self.connect, self.scouting)
        return "config" if self.config is not None and file_decides else ""

    def warnings(self) -> Sequence[ConfigWarning]:
        found = []
        if self.config is None and 0 < self.retransmit_ms <= LEASE_MS:
            text = (
                f"{self.retransmit_ms} ms is not longer than Zenoh's lease of {LEASE_MS} ms, after which an outage is "
                "detected: messages at its beginning are not sent again"
            )
            found.append(ConfigWarning("retransmit_ms", text, f"choose more than {LEASE_MS}"))
        if not self.retransmit_ms and self.retransmit_bytes != DEFAULT_RETRANSMIT_BYTES:
            text = "never applies: retransmit_ms is 0, so no message is kept"
            found.append(ConfigWarning("retransmit_bytes", text, "leave retransmit_bytes out"))
        return [*found, *self._open_listeners()]

    def _open_listeners(self) -> Sequence[ConfigWarning]:
        """Listeners that any host can use without authentication: a Zenoh configuration file could require one."""
        if self.config is not None:
            return ()
        if self.access:
            text = "any host that reaches this address can claim any source in the access rules: it needs no authentication"
            advice = (
                "listen on a loopback address, or set config to a file with authentication, and identities"
            )
        else:
            text = "any host that reaches this address can send and receive: it needs no authentication"
            advice = "listen on a loopback address, add [[access]] rules, or set config to a file with authentication"
        return [
            ConfigWarning(f"listen[{index}]", text, advice)
            for index, locator in enumerate(parse_locator(each, 0) for each in self.listen or ())
            if locator.port is not None
            and not is_loopback(locator.host)
            and locator.protocol not in ENCRYPTED
        ]


def _check_peer_authority(authority: str) -> None:
    try:
        check_authority(authority, authority)
    except UStatusError as error:
        raise ValueError(f"peers: {error.message}") from error
    if authority == ANY_AUTHORITY:
        raise ValueError("peers: '*' is not the authority of a streamer; expected names of streamers")
