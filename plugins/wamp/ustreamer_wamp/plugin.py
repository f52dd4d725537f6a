# SPDX-License-Identifier: Apache-2.0
"""The plugin: `[plugins.wamp]` brings an endpoint along, and this says what kind of endpoint that is."""

from collections.abc import Mapping

from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.transport_port import TransportKind
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.transport import KIND, WampEndpoint, make_wamp_transport


class WampSection(WampConfig, frozen=True, kw_only=True):
    """The section, and the endpoint that comes with it."""

    def endpoints(self, authority: str) -> Mapping[str, WampEndpoint]:
        """See `ustreamer.hooks.EndpointProvider`: one, named `wamp`, behind which the sessions live."""
        mine = self.authority or f"wamp.{authority}"
        return {KIND: WampEndpoint(transport=KIND, authorities=(mine,), section=self)}


class WampPlugin:
    """Everything happens in the endpoint."""

    Config = WampSection

    def __init__(self, config: WampSection, context: PluginContext) -> None:
        """Nothing is kept: the section comes with the endpoint."""

    @staticmethod
    @hookimpl
    def ustreamer_transports() -> Mapping[str, TransportKind]:
        """Its entities are sessions, which have no uSubscription: the streamer's serves them."""
        return {
            KIND: TransportKind(
                WampEndpoint, make_wamp_transport, has_usubscription=False, outlives_streamer=False
            )
        }
