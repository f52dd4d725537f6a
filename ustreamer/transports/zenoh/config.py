# SPDX-License-Identifier: Apache-2.0
"""`[endpoints.<name>] transport = "zenoh"`. Imports no Zenoh: a configuration can be checked where it is not installed."""

import re
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from ustreamer.transport_port import EndpointConfig
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, check_authority

_LOCATOR: Final = re.compile(r"[a-z0-9_-]+/[^/].*")


class ZenohEndpoint(EndpointConfig, frozen=True, kw_only=True):
    """A Zenoh session: any Zenoh configuration file (`config`), the keys below, or the keys on top of the file.

    Without a file, what is not said is: mode "peer", nothing listened on, nobody connected to, no scouting. With one,
    what is not said is left as the file has it. `queue` bounds how many messages wait between Zenoh's thread and ours,
    for each listener filter; a full queue slows the sender down. What was sent within `replay_ms` before the subscribers of a
    route were lost is sent again when they are back, if it may have been lost with the link, but for requests that were
    answered; 0 is never. It should be longer than the lease of the nodes, after which an outage is noticed. `replay_messages` and `replay_bytes` bound what is
    remembered for it. `peers` are the own authorities of streamers on this network that are believed to carry what
    they say even where they are not seen on the other side; False: neither look for others nor announce ourselves.
    """

    config: Path | None = None
    mode: Literal["peer", "client", "router"] | None = None
    listen: tuple[str, ...] | None = None
    connect: tuple[str, ...] | None = None
    scouting: bool | None = None
    replay_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] = 15_000
    replay_messages: Annotated[int, msgspec.Meta(ge=1)] = 4_000
    replay_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16_000_000
    queue: Annotated[int, msgspec.Meta(ge=1024, le=4096)] = 1024
    peers: tuple[str, ...] | bool = True

    def __post_init__(self) -> None:
        for key, locators in (("listen", self.listen), ("connect", self.connect)):
            for locator in locators or ():
                if not _LOCATOR.fullmatch(locator):
                    raise ValueError(
                        f"{key}: {locator!r} is no Zenoh endpoint; expected protocol/address, as tcp/127.0.0.1:7447"
                    )
        for authority in () if isinstance(self.peers, bool) else self.peers:
            _check_peer_authority(authority)
        if self.config is None and not (self.listen or self.connect or self.scouting):
            raise ValueError("a Zenoh endpoint without config, listen, connect and scouting can reach nobody")


def _check_peer_authority(authority: str) -> None:
    try:
        check_authority(authority, authority)
    except UStatusError as error:
        raise ValueError(f"peers: {error.message}") from error
    if authority == ANY_AUTHORITY:
        raise ValueError("peers: '*' is nobody's own authority; expected names of streamers")
