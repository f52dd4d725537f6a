# SPDX-License-Identifier: Apache-2.0
"""The plugin: activates the section `[plugins.usubscription]`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ustreamer.core.routing.subscriptions import SubscriptionDirectory
from ustreamer.hooks import HostedService, PluginContext, hookimpl
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.requests.updates import change_topics
from ustreamer_usubscription.service import STORE_DIRECTORY, UsubscriptionService
from ustreamer_usubscription.store import store_contents

if TYPE_CHECKING:
    from ustreamer_usubscription.external.service import ExternalUsubscription

_RELOADABLE_KEYS: Final = frozenset(
    {
        "max_subscriptions",
        "max_registrations",
        "max_topics",
        "max_remote_topics",
        "max_subscriptions_per_authority",
        "max_registrations_per_authority",
        "max_topics_per_authority",
        "page_size",
    }
)
"""The keys that are read for every Request, and only then."""


class UsubscriptionPlugin:
    """Hosts core.usubscription and provides its directory to the router.

    Construction touches nothing; the service's `start` opens the store.
    """

    Config = UsubscriptionConfig

    def __init__(self, config: UsubscriptionConfig, context: PluginContext) -> None:
        for authority in sorted({*config.via, *config.via.values()} & {context.authority, *context.serves}):
            raise ValueError(f"via: {authority!r} is served by this streamer; expected other devices")
        self._context = context
        self.directory = InMemoryDirectory()
        self.service = UsubscriptionService(config, context, self.directory)
        self._external = self._follow(config) if config.external else None

    def _follow(self, config: UsubscriptionConfig) -> "ExternalUsubscription":
        from ustreamer_usubscription.external.service import ExternalUsubscription  # few streamers need it

        return ExternalUsubscription(config, self._context, self.directory)

    def reconfigure(self, config: UsubscriptionConfig) -> Callable[[], None]:
        """Apply the keys in `_RELOADABLE_KEYS`. Raises ValueError for any other key that differs."""
        before, after = (msgspec.structs.asdict(each) for each in (self.service.config, config))
        fixed = [key for key in before if before[key] != after[key] and key not in _RELOADABLE_KEYS]
        if fixed:
            raise ValueError(f"{', '.join(fixed)}: needs a restart")

        def apply() -> None:
            self.service.set_config(config)
            if self._external is not None:
                self._external.set_config(config)

        return apply

    def handle_request(self, request: Mapping[str, Any]) -> int:
        """Change subscriptions, for `ustreamer subscriptions rm | import`; returns how many when that is on disk."""
        from ustreamer_usubscription.operator_changes import change_of  # imported by the first request only

        return self._hosted.change(change_of(request))

    def statistics(self) -> Mapping[str, int]:
        """The counters of the service."""
        return self._hosted.statistics()

    @property
    def _hosted(self) -> "UsubscriptionService | ExternalUsubscription":
        return self.service if self._external is None else self._external

    @hookimpl
    def ustreamer_services(self) -> Sequence[HostedService]:
        return [self._hosted]

    @hookimpl
    def ustreamer_broadcast_topics(self) -> Collection[UUri]:
        """The change topics, for entities that only listen; those of another process are published by that process.

        [impl->req~usubscription-change-topic~1] [impl->dsn~usubscription-change-notification-topic~1]
        """
        return change_topics(self._context.authority) if self._external is None else ()

    @hookimpl
    def ustreamer_subscription_directory(self) -> SubscriptionDirectory:
        return self.directory

    @hookimpl
    def ustreamer_stored_subscriptions(self) -> SubscriptionDirectory:
        """Raises the errors of `store_contents.inspect_store`."""
        directory = InMemoryDirectory()
        store = self._context.state_dir / STORE_DIRECTORY
        if store.exists() and self._external is None:
            directory.load_stored(store_contents.inspect_store(store).subscriptions)
            ended = directory.pop_expired(self._context.clock.wall_ms())
            directory.apply(dict.fromkeys(entry.pair for entry in ended))
        return directory

    @hookimpl
    def ustreamer_started(self) -> None:
        if self._external is None:
            self.service.on_endpoints_up()
        else:
            self._external.on_endpoints_up()
