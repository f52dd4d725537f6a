# SPDX-License-Identifier: Apache-2.0
"""The built-in transports: `local`, `zenoh` and `someip`, registered through the hook that every transport plugin uses.

In: the `[endpoints.<name>]` section of the configuration and an `EndpointContext`.
Out: an `EndpointTransport`, created when the endpoint is created. Its protocol library is imported at that moment.

local/   in-process network for tests and plugin authors; read it first, it is the smallest complete transport
zenoh/   one Zenoh session per endpoint
someip/  SOME/IP over UDP and TCP with service discovery
"""

from collections.abc import Mapping
from typing import Any

from ustreamer.hooks import hookimpl
from ustreamer.transport_port import EndpointContext, EndpointTransport, TransportKind
from ustreamer.transports.local.config import LocalEndpoint
from ustreamer.transports.someip.config import SomeipEndpoint, services_restart_reason
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.uprotocol.ustatus import UCode, UStatusError

# A transport library is imported when an endpoint of its kind is created: an ECU without Zenoh installs no Zenoh.


def _make_local_transport(config: Any, context: EndpointContext) -> EndpointTransport:
    from ustreamer.transports.local.transport import make_local_transport

    return make_local_transport(config, context)


def _make_zenoh_transport(config: Any, context: EndpointContext) -> EndpointTransport:
    try:
        from ustreamer.transports.zenoh.transport import ZenohTransport
    except ModuleNotFoundError as error:
        if error.name != "zenoh":
            raise
        text = (
            f"endpoint {context.name!r}: transport zenoh needs the package eclipse-zenoh "
            "(install the wheel file of ustreamer[zenoh]: docs/install.md)"
        )
        raise UStatusError(UCode.UNIMPLEMENTED, text) from error

    return ZenohTransport(config, context)


def _make_someip_transport(config: Any, context: EndpointContext) -> EndpointTransport:
    from ustreamer.transports.someip.endpoint.transport import SomeipTransport

    return SomeipTransport(config, context)


def _uses_service_discovery(config: SomeipEndpoint) -> bool:
    """With service discovery the endpoint acts as uSubscription for its ECUs."""
    return config.sd is not False


class BuiltinTransports:
    """The plugin that registers `local`, `zenoh` and `someip`."""

    @hookimpl
    def ustreamer_transports(self) -> Mapping[str, TransportKind]:
        return {
            "local": TransportKind(LocalEndpoint, _make_local_transport, outlives_streamer=False),
            "zenoh": TransportKind(ZenohEndpoint, _make_zenoh_transport),
            "someip": TransportKind(
                SomeipEndpoint,
                _make_someip_transport,
                has_usubscription=_uses_service_discovery,
                reloadable_keys=frozenset({"services"}),
                restart_reason=services_restart_reason,
            ),
        }
