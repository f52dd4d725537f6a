# SPDX-License-Identifier: Apache-2.0
"""`[endpoints.<name>] transport = "zenoh"`. Imports no Zenoh, so `check` runs where Zenoh is not installed."""

import re
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from ustreamer.transport_port import EndpointConfig
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, check_authority

_LOCATOR: Final = re.compile(r"[a-z0-9_-]+/[^/].*")


class ZenohEndpoint(EndpointConfig, frozen=True, kw_only=True):
    """A Zenoh session: a Zenoh configuration file (`config`), the keys below, or the keys on top of the file.

    Without a file, the defaults are: mode "peer", no listening address, no connection, no scouting. With a file, absent
    keys keep the values of the file.

    `queue` bounds the messages between Zenoh's thread and ours per listener filter. A full queue slows the sender down.

    `retransmit_ms`: messages sent within this time before a route lost its subscribers are sent again when the subscribers
    are back, if the link may have lost them. Answered requests are not sent again; 0 disables it. It should be longer
    than the lease of the nodes, after which an outage is detected. `retransmit_bytes` bounds the memory for it; while
    nodes may be frozen, it is twice as much.

    `max_publishers` bounds the declared Zenoh publishers, one per topic or address pair and priority (4 kB each).

    `peers` lists the authorities of streamers on this network that are trusted to forward what they announce, even if
    they are not visible on the other side. False: neither detect peers nor announce this streamer.
    """

    config: Path | None = None
    mode: Literal["peer", "client", "router"] | None = None
    listen: tuple[str, ...] | None = None
    connect: tuple[str, ...] | None = None
    scouting: bool | None = None
    retransmit_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] = 15_000
    retransmit_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16_000_000
    queue: Annotated[int, msgspec.Meta(ge=1024, le=4096)] = 1024
    peers: tuple[str, ...] | bool = True
    max_publishers: Annotated[int, msgspec.Meta(ge=16, le=131_072)] = 16_384

    def __post_init__(self) -> None:
        for key, locators in (("listen", self.listen), ("connect", self.connect)):
            for locator in locators or ():
                if not _LOCATOR.fullmatch(locator):
                    raise ValueError(
                        f"{key}: {locator!r} is no Zenoh endpoint; expected protocol/address, like tcp/127.0.0.1:7447"
                    )
        for authority in () if isinstance(self.peers, bool) else self.peers:
            _check_peer_authority(authority)
        if self.config is None and not (self.listen or self.connect or self.scouting):
            raise ValueError(
                "a Zenoh endpoint without config, listen, connect and scouting has no connection"
            )


def _check_peer_authority(authority: str) -> None:
    try:
        check_authority(authority, authority)
    except UStatusError as error:
        raise ValueError(f"peers: {error.message}") from error
    if authority == ANY_AUTHORITY:
        raise ValueError("peers: '*' is not the authority of a streamer; expected names of streamers")
