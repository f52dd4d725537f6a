# SPDX-License-Identifier: Apache-2.0
"""The question whether this streamer forwards a message, where several streamers share a network.

Router and ingress know this interface only. Without redundant streamers the policy is `FORWARD_ALL`. A policy costs
nothing per message: it is called when a route is built. `ustreamer.core.peers.forwarding` has the other policy.
"""

from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final, Protocol

import msgspec

from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.uuri import UUri


class Target(msgspec.Struct, frozen=True):
    """The destination of one copy of a message: an endpoint and, behind a unicast endpoint, one subscriber.

    `paused`: all its subscribers have stopped the dispatch, so the message waits in the egress queue.
    `broadcast`: a multicast domain without a subscriber. The message is for its listeners, if there are any.
    """

    endpoint: str
    subscriber: UUri | None = None
    period_ns: int = 0
    paused: bool = False
    broadcast: bool = False


class ForwardingRole(Enum):
    """The role of this streamer for a message that came in at an endpoint."""

    FORWARD = "forward"
    """Forward the message as if there were no other streamer."""
    FORWARD_SILENTLY = "forward_silently"
    """As FORWARD, but another streamer sends the error response, if there is one."""
    DEFER = "defer"
    """Drop the message: another streamer forwards it, or has forwarded it to this network."""


class ForwardingShare(msgspec.Struct, frozen=True):
    """All targets of a topic, and the endpoints among them that another streamer forwards the topic to.

    `grace_until_ns` is when to call `end_grace` for a grace period that starts now; 0: none starts.
    """

    targets: tuple[Target, ...]
    deferred: frozenset[str] = frozenset()
    grace_until_ns: int = 0


class ForwardingPolicy(Protocol):
    """Decides which messages this streamer forwards. Called when a route is built, from any thread."""

    def forwarding_role(self, ingress: str, attributes: UAttributes) -> ForwardingRole:
        """The role for a message with these attributes, valid or not, that came in at `ingress`."""
        ...

    def own_messages_return_at(self, ingress: str) -> bool:
        """Whether messages from the addresses of this streamer's services come in at `ingress`, and are no forgeries.

        It sends them at another endpoint of the network, or a streamer with the same authority sends them.
        """
        ...

    def assign(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> ForwardingShare:
        """The share of this streamer in the targets of a publication."""
        ...

    def end_grace(self, topic: UUri, now_ns: int) -> None:
        """End the grace periods of `topic` that are over. The routes of `topic` are then built again."""
        ...

    def withdraw(self, topics: AbstractSet[UUri], now_ns: int) -> int:
        """This streamer no longer knows the targets of `topics`, so no other streamer may rely on it.

        Returns when to call `end_grace`; 0: no grace period starts.
        """
        ...


class ForwardAll:
    """The policy of a streamer without peers: it forwards everything."""

    def forwarding_role(self, ingress: str, attributes: UAttributes) -> ForwardingRole:
        return ForwardingRole.FORWARD

    def own_messages_return_at(self, ingress: str) -> bool:
        return False

    def assign(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> ForwardingShare:
        return ForwardingShare(targets)

    def end_grace(self, topic: UUri, now_ns: int) -> None:
        pass

    def withdraw(self, topics: AbstractSet[UUri], now_ns: int) -> int:
        return 0


FORWARD_ALL: Final = ForwardAll()
