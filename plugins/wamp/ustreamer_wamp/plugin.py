# SPDX-License-Identifier: Apache-2.0
"""The plugin: the section `[plugins.wamp]` adds an endpoint; this module defines the kind of the endpoint."""

from collections.abc import Mapping

from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.transport_port import EndpointContext, EndpointTransport, TransportKind
from ustreamer_wamp.config import KIND, WampConfig
from ustreamer_wamp.endpoint import WampEndpoint


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
        """Has no state: the section adds the endpoint."""

    @staticmethod
    @hookimpl
    def ustreamer_transports() -> Mapping[str, TransportKind]:
        """Its entities are sessions, which have no uSubscription: the streamer's serves them."""
        return {
            KIND: TransportKind(
                WampEndpoint, _make_wamp_transport, has_usubscription=False, outlives_streamer=False
            )
        }
