# SPDX-License-Identifier: Apache-2.0
"""The verified sender of a message: what a transport knows of it.

A transport binds sources to identities (`EndpointConfig.identities_of`), so the identity of a message follows from its
endpoint and its source. The router reads it when a route is built, and the cached route holds the decision.
"""

from collections.abc import Callable, Collection
from typing import Protocol

import msgspec

from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.uuri import UUri


class Identity(msgspec.Struct, frozen=True, order=True):
    """A name that a transport has verified: of a certificate, a Zenoh user, or a WAMP authid. `role` may be ""."""

    name: str
    role: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.role})" if self.role else self.name


class Peer(msgspec.Struct, frozen=True):
    """The sender of messages from one source that come in at `endpoint`.

    `identities` has the identities that may send from this source: one of them sent the message. None: the network
    authenticates no sender, so the source is the sender's own claim. `hosted`: an entity of the streamer's own process.
    """

    endpoint: str
    identities: frozenset[Identity] | None = None
    hosted: bool = False

    @property
    def is_verified(self) -> bool:
        """Whether the source of the message is proven."""
        return self.hosted or bool(self.identities)

    def is_one_of(self, names: Collection[str]) -> bool:
        """Whether the sender is proven to have one of these names."""
        return bool(self.identities) and all(each.name in names for each in self.identities or ())

    def __str__(self) -> str:
        if self.hosted:
            return "this streamer"
        if self.identities is None:
            return f"unauthenticated at {self.endpoint!r}"
        return " or ".join(map(str, sorted(self.identities))) or f"no identity at {self.endpoint!r}"


class IdentityTable(Protocol):
    """The identities of an endpoint."""

    def __call__(self, source: UUri, /) -> frozenset[Identity] | None:
        """The identities that may send from `source`; None if the network authenticates no sender."""
        ...


Authorise = Callable[[Peer, UAttributes], UStatus | None]
"""The reason of a plugin to deny messages with these attributes; None if no plugin denies them."""
