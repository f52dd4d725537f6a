# SPDX-License-Identifier: Apache-2.0
"""The plugin: the section `[plugins.wamp]` adds an endpoint; this module defines the kind of the endpoint."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.transport_port import EndpointContext, EndpointTransport, TransportKind
from ustreamer_wamp.config import KIND, WampConfig
from ustreamer_wamp.endpoint import WampEndpoint

RELOADABLE_KEYS: Final = frozenset({"access", "anonymous", "users"})


def _make_wamp_transport(config: WampEndpoint, context: EndpointContext) -> EndpointTransport:
    """The endpoint of a section. A command that opens none does not import asyncio and TLS."""
    from ustreamer_wamp.transport import WampTransport

    return WampTransport(config, context)


class WampSection(WampConfig, frozen=True, kw_only=True):
    """The section, and the endpoint that it adds."""

    def endpoints(self, authority: str) -> Mapping[str, WampEndpoint]:
        """See `ustreamer.hooks.EndpointProvider`: one endpoint, named `wamp`. The sessions are behind it."""
        mine = self.authority or f"wamp.{authority}"
        return {KIND: WampEndpoint(transport=KIND, authorities=(mine,), access=self.access, section=self)}


class WampPlugin:
    """Everything happens in the endpoint."""

    Config = WampSection

    def __init__(self, config: WampSection, context: PluginContext) -> None:
        self._config = config

    def reconfigure(self, config: WampSection) -> Callable[[], None]:
        """Permit other users and access rules, which the endpoint takes. Raises ValueError for any other key."""
        before, after = (msgspec.structs.asdict(each) for each in (self._config, config))
        fixed = [key for key in before if before[key] != after[key] and key not in RELOADABLE_KEYS]
        if fixed:
            raise ValueError(f"{', '.join(fixed)}: needs a restart")

        def apply() -> None:
            self._config = config

        return apply

    @staticmethod
    @hookimpl
    def ustreamer_transports() -> Mapping[str, TransportKind]:
        """Its entities are sessions, which have no uSubscription: the streamer's serves them."""
        return {
            KIND: TransportKind(
                WampEndpoint,
                _make_wamp_transport,
                has_usubscription=False,
                reloadable_keys=frozenset({"section"}),
                outlives_streamer=False,
            )
        }
