# SPDX-License-Identifier: Apache-2.0
"""Other streamers on the network of an endpoint: what the host says of us and of them, on its way to service discovery and back.

`announce`, `believe` and `watch` may be called from any thread, `serves_elsewhere` as well; the rest belongs to the receiving one.
"""

from collections.abc import Callable, Iterable

from ustreamer.core.peers.election import Announcement, RouterId
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.sd.actions import Action, OfferRoleChanged
from ustreamer.transports.someip.sd.config import SdConfig
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.settings import PeerDiscoverySettings, ServiceKey
from ustreamer.transports.someip.sd.standby import TrustCheck


class PeerStreamers:
    """Of one endpoint that has service discovery."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` has the receiving thread call `follow`."""
        self._wake = wake
        self._pending_announcements: frozenset[Announcement] | None = None
        self._pending_trust_check: TrustCheck | None = None
        self._listeners: list[Callable[[frozenset[Announcement]], None]] = []
        self._served_by_peer: frozenset[ServiceKey] = frozenset()
        self.has_peers = False
        """Whether any streamer but ours is heard."""

    # --- what the host says ---------------------------------------------------------------------------------------------

    def announce(self, announcements: frozenset[Announcement]) -> None:
        """As the port says."""
        self._pending_announcements = announcements
        self._wake()

    def set_trust_check(self, trust_check: TrustCheck) -> None:
        """As the port says."""
        self._pending_trust_check = trust_check
        self._wake()

    def add_announcement_listener(self, listener: Callable[[frozenset[Announcement]], None]) -> None:
        """As `watch_peers` of the port."""
        self._listeners.append(listener)

    def update_discovery(self, discovery: Discovery, now_ns: int) -> list[Action]:
        """Tell service discovery what has been said since the last time."""
        actions: list[Action] = []
        announced, self._pending_announcements = self._pending_announcements, None
        if announced is not None:
            actions += discovery.announce(announced, now_ns)
        trust_check, self._pending_trust_check = self._pending_trust_check, None
        if trust_check is not None:
            actions += discovery.set_trust_check(trust_check, now_ns)
        return actions

    # --- what service discovery says ------------------------------------------------------------------------------------

    def on_announcements(self, announcements: frozenset[Announcement]) -> None:
        """All that is announced."""
        self.has_peers = bool(announcements)
        for listener in self._listeners:
            listener(announcements)

    def on_offer_role_changed(self, change: OfferRoleChanged) -> None:
        """Another streamer offers a service of ours, or none does any more."""
        key = frozenset((change.key,))
        self._served_by_peer = self._served_by_peer - key if change.ours else self._served_by_peer | key

    def is_served_by_peer(self, key: ServiceKey) -> bool:
        """Whether another streamer offers it, so that its events are none of ours to send."""
        return key in self._served_by_peer


def peer_discovery_settings(
    config: SomeipEndpoint, context: EndpointContext, relayed: Iterable[ServiceKey]
) -> PeerDiscoverySettings | None:
    """What service discovery is told of us and others; None if it is to know of no streamers, or there is no process of ours."""
    assert isinstance(config.sd, SdConfig)
    if config.peers is False or not context.instance:
        return None
    return PeerDiscoverySettings(
        own_id=RouterId(context.authority, context.instance),
        service=config.sd.streamer_service,
        trusted_authorities=frozenset(() if config.peers is True else config.peers),
        accept_relayed=frozenset(relayed),
        streamer_hosts=frozenset(config.peer_streamer_addresses),
    )
