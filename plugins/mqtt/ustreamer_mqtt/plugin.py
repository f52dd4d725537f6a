# SPDX-License-Identifier: Apache-2.0
"""The plugin: it defines the kind of endpoint `mqtt`, and nothing else."""

from collections.abc import Mapping

import msgspec

from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.transport_port import EndpointContext, EndpointTransport, TransportKind
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer_mqtt.config import KIND, MqttEndpoint


def _make_mqtt_transport(config: MqttEndpoint, context: EndpointContext) -> EndpointTransport:
    """The endpoint of a section. A command that opens none does not import the client library."""
    try:
        from ustreamer_mqtt.transport import MqttTransport
    except ModuleNotFoundError as error:
        if error.name != "paho":
            raise
        text = (
            f"endpoint {context.name!r}: transport mqtt needs the package paho-mqtt (pip install paho-mqtt)"
        )
        raise UStatusError(UCode.UNIMPLEMENTED, text) from error

    return MqttTransport(config, context)


def _has_usubscription(config: MqttEndpoint) -> bool:
    return config.usubscription


class MqttSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[plugins.mqtt]`, without keys: everything is in the sections of the endpoints."""


class MqttPlugin:
    """Everything happens in the endpoints."""

    Config = MqttSection

    def __init__(self, config: MqttSection, context: PluginContext) -> None:
        """Has no state: the sections of the endpoints have everything."""

    @staticmethod
    @hookimpl
    def ustreamer_transports() -> Mapping[str, TransportKind]:
        return {KIND: TransportKind(MqttEndpoint, _make_mqtt_transport, _has_usubscription)}
