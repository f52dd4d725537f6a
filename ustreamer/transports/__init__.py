# SPDX-License-Identifier: Apache-2.0
"""The transports that come with the streamer, registered through the same hook as anybody else's."""

from collections.abc import Mapping
from typing import Any

from ustreamer.hooks import hookimpl
from ustreamer.transport_port import EndpointContext, EndpointTransport, TransportKind
from ustreamer.transports.local.config import LocalEndpoint
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.zenoh.config import ZenohEndpoint

# A transport's library is imported when an endpoint of its kind is made: an ECU without Zenoh installs no Zenoh.


def _make_local_transport(config: Any, context: EndpointContext) -> EndpointTransport:
    from ustreamer.transports.local.transport import make_local_transport

    return make_local_transport(config, context)


def _make_zenoh_transport(config: Any, context: EndpointContext) -> EndpointTransport:
    from ustreamer.transports.zenoh.transport import ZenohTransport

    return ZenohTransport(config, context)


def _make_someip_transport(config: Any, context: EndpointContext) -> EndpointTransport:
    from ustreamer.transports.someip.endpoint.transport import SomeipTransport

    return SomeipTransport(config, context)


def _uses_service_discovery(config: SomeipEndpoint) -> bool:
    """With service discovery, the endpoint stands for a uSubscription of the ECUs."""
    return config.sd is not False


class BuiltinTransports:
    """The plugin that knows `local`, `zenoh` and `someip`."""

    @hookimpl
    def ustreamer_transports(self) -> Mapping[str, TransportKind]:
        return {
            "local": TransportKind(LocalEndpoint, _make_local_transport, outlives_streamer=False),
            "zenoh": TransportKind(ZenohEndpoint, _make_zenoh_transport),
            "someip": TransportKind(
                SomeipEndpoint, _make_someip_transport, has_usubscription=_uses_service_discovery
            ),
        }
