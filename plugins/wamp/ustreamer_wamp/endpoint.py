# SPDX-License-Identifier: Apache-2.0
"""The endpoint that the section `[plugins.wamp]` adds, and the identities of its senders."""

from collections.abc import Sequence
from typing import Final

from ustreamer.core.routing.identity import Identity
from ustreamer.transport_port import BoundAddress, EndpointConfig
from ustreamer.uprotocol.uuri import UUri
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.vehicle.mapping import topic_of

SESSIONS: Final = Identity("")
"""The sender of calls for all sessions together. No rule can name it."""


class WampEndpoint(EndpointConfig, frozen=True, kw_only=True):
    """The endpoint that `[plugins.wamp]` adds."""

    section: WampConfig

    def known_identities(self) -> Sequence[Identity]:
        return self.section.known_identities()

    def identities_of(self, source: UUri) -> frozenset[Identity]:
        """The users that may publish the topic. Any other source is the bridge, for the subscriptions of all sessions."""
        if not source.is_topic:
            return frozenset([SESSIONS])
        topic = topic_of(source)
        return frozenset(
            Identity(each.authid, each.role) for each in self.section.users if topic.startswith(each.publish)
        )

    def bound_addresses(self) -> Sequence[BoundAddress]:
        return [
            BoundAddress(key, "unix", each.socket)
            if each.socket
            else BoundAddress(key, "tcp", each.host, each.port)
            for key, each in zip(self.section.listen_keys, self.section.listeners, strict=True)
        ]
