# SPDX-License-Identifier: Apache-2.0
"""Other streamers on the network of an endpoint: what the host says of us and of them, on its way to service discovery and back.

`announce`, `believe` and `watch` may be called from any thread, `serves_elsewhere` as well; the rest belongs to the receiving one.
"""

from collections.abc import Callable, Iterable

from ustreamer.core.peers.election import Announcement, Who
from ustreamer.hooks import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.sd.actions import Action, OfferTurned
from ustreamer.transports.someip.sd.config import ServiceDiscovery
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.settings import ServiceKey, Streamer
from ustreamer.transports.someip.sd.standby import Brings


class OtherStreamers:
    """Of one endpoint that has service discovery."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` has the receiving thread call `follow`."""
        self._wake = wake
        self._announced: frozenset[Announcement] | None = None
        self._brings: Brings | None = None
        self._watchers: list[Callable[[frozenset[Announcement]], None]] = []
        self._elsewhere: frozenset[ServiceKey] = frozenset()
        self.there = False
        """Whether any streamer but ours is heard."""

    # --- what the host says ---------------------------------------------------------------------------------------------

    def announce(self, announcements: frozenset[Announcement]) -> None:
        """As the port says."""
        self._announced = announcements
        self._wake()

    def believe(self, brings: Brings) -> None:
        """As the port says."""
        self._brings = brings
        self._wake()

    def watch(self, changed: Callable[[frozenset[Announcement]], None]) -> None:
        """As `watch_neighbours` of the port."""
        self._watchers.append(changed)

    def follow(self, discovery: Discovery, now_ns: int) -> list[Action]:
        """Tell service discovery what has been said since the last time."""
        actions: list[Action] = []
        announced, self._announced = self._announced, None
        if announced is not None:
            actions += discovery.announce(announced, now_ns)
        brings, self._brings = self._brings, None
        if brings is not None:
            actions += discovery.believe(brings, now_ns)
        return actions

    # --- what service discovery says ------------------------------------------------------------------------------------

    def heard(self, announcements: frozenset[Announcement]) -> None:
        """All that is announced."""
        self.there = bool(announcements)
        for changed in self._watchers:
            changed(announcements)

    def turned(self, news: OfferTurned) -> None:
        """Another streamer offers a service of ours, or none does any more."""
        key = frozenset((news.key,))
        self._elsewhere = self._elsewhere - key if news.ours else self._elsewhere | key

    def serves_elsewhere(self, key: ServiceKey) -> bool:
        """Whether another streamer offers it, so that its events are none of ours to send."""
        return key in self._elsewhere


def streamer_settings(
    config: SomeipEndpoint, context: EndpointContext, relayed: Iterable[ServiceKey]
) -> Streamer | None:
    """What service discovery is told of us and others; None if it is to know of no streamers, or there is no process of ours."""
    assert isinstance(config.sd, ServiceDiscovery)
    if config.neighbours is False or not context.instance:
        return None
    return Streamer(
        me=Who(context.authority, context.instance),
        service=config.sd.streamer_service,
        vouched=frozenset(() if config.neighbours is True else config.neighbours),
        relayed=frozenset(relayed),
        hosts=frozenset(config.other_streamers),
    )
