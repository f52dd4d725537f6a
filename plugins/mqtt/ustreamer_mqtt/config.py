# SPDX-License-Identifier: Apache-2.0
"""`[endpoints.<name>] transport = "mqtt"`. Imports no client library, so `check` runs without it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from ustreamer.transport_port import ConfigWarning, EndpointConfig, PrivateFile, is_loopback
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, check_authority

KIND: Final = "mqtt"
"""The name of the transport kind."""

_BROKER: Final = re.compile(
    r"(?P<scheme>mqtts?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?/?"
)
_FORM: Final = "expected mqtt://host:port or mqtts://host:port"
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_SHARED: Final = re.compile(r"[A-Za-z0-9._~-]{1,64}")
_TEXT: Final = Meta(min_length=1, max_length=256)


class BrokerAddress(NamedTuple):
    """The address of a broker; `tls`: its certificate is verified."""

    tls: bool
    host: str
    port: int


class MqttTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """PEM files: the authorities that sign the broker's certificate (default: those of the machine), and our own pair."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) is not (self.key is None):
            raise ValueError("certificate and key: expected both or none")


class MqttEndpoint(EndpointConfig, frozen=True, kw_only=True):
    """A connection to a broker of MQTT 5.

    `topics` selects the structure of topic names: "in_vehicle" has all parts of both addresses, "off_vehicle" only the
    two authorities. With "off_vehicle" exactly one authority lives behind the endpoint.

    `receive_for` are the authorities whose messages the broker is asked for, besides publications in the vehicle.

    `usubscription`: the entities behind the endpoint have a uSubscription of their own, as behind another streamer. If
    not, the streamer serves their authorities.

    `shared` is the name of a group of streamers, of which one gets each message (`$share/<name>/...`).

    With a `session_expiry_s` above 0 the broker keeps messages for this client while it is away. `clean_start`: the
    first connection of a process drops what the broker kept.

    `max_in_flight` and `max_in_flight_bytes` bound the sent messages that the broker has not acknowledged;
    `receive_maximum` and `receive_bytes` the received ones that wait for a listener or for their acknowledgement.
    """

    broker: Annotated[str, Meta(examples=["mqtt://127.0.0.1:1883"])] = "mqtt://127.0.0.1:1883"
    client_id: Annotated[str, Meta(max_length=128)] = ""
    topics: Literal["in_vehicle", "off_vehicle"] = "in_vehicle"
    receive_for: Annotated[tuple[str, ...], Meta(min_length=1)] = (ANY_AUTHORITY,)
    usubscription: bool = False
    shared: str = ""
    username: Annotated[str, _TEXT] | None = None
    password: Annotated[str, Meta(min_length=1, max_length=65_535)] | None = None
    tls: MqttTls | None = None
    session_expiry_s: Annotated[int, Meta(ge=0, le=4_294_967_295)] = 0
    clean_start: bool = False
    keepalive_s: Annotated[int, Meta(ge=1, le=65_535)] = 30
    connect_timeout_ms: Annotated[int, Meta(ge=100, le=60_000)] = 5_000
    max_packet_bytes: Annotated[int, Meta(ge=1_024, le=268_435_455)] = 1_114_112
    max_user_properties: Annotated[int, Meta(ge=10, le=1_000)] = 32
    max_in_flight: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    max_in_flight_bytes: Annotated[int, Meta(ge=1_024)] = 16_000_000
    receive_maximum: Annotated[int, Meta(ge=1, le=65_535)] = 256
    receive_bytes: Annotated[int, Meta(ge=1_024)] = 16_000_000

    def __post_init__(self) -> None:
        super().__post_init__()
        address = self.address
        for key, names in (("authorities", self.authorities), ("receive_for", self.receive_for)):
            for index, name in enumerate(names):
                try:
                    check_authority(name, name)
                except UStatusError as error:
                    raise ValueError(f"{key}[{index}]: {error.message}") from error
        if self.tls is not None and not address.tls:
            raise ValueError(f"tls: {self.broker!r} is not encrypted; write mqtts://")
        if self.password is not None and self.username is None:
            raise ValueError("password needs username")
        if self.password is not None and not address.tls and not is_loopback(address.host):
            raise ValueError(
                f"password: {self.broker!r} is not encrypted and not on this machine; write mqtts://"
            )
        self._check_topics()

    def _check_topics(self) -> None:
        if self.topics == "off_vehicle" and (len(self.authorities) != 1 or ANY_AUTHORITY in self.authorities):
            raise ValueError(
                'topics: with "off_vehicle" the endpoint needs exactly one authority, which is not "*": '
                "publications go to it"
            )
        if not self.shared:
            return
        if _SHARED.fullmatch(self.shared) is None:
            raise ValueError(f"shared: {self.shared!r}: expected 1 to 64 characters of A-Z a-z 0-9 . _ ~ -")
        if ANY_AUTHORITY in self.authorities:
            raise ValueError(
                'shared: authorities must not have "*": in a group the broker would return our own messages'
            )
        if not self.client_id:
            raise ValueError("shared: needs client_id, another one at each streamer of the group")

    @property
    def address(self) -> BrokerAddress:
        """The parsed `broker`."""
        match = _BROKER.fullmatch(self.broker)
        if match is None or not 1 <= int(match["port"] or _PORTS[match["scheme"]]) <= 0xFFFF:
            raise ValueError(f"broker: {self.broker!r}: {_FORM}")
        scheme, host = match["scheme"], match["host"].strip("[]")
        return BrokerAddress(scheme == "mqtts", host, int(match["port"] or _PORTS[scheme]))

    def remote_key(self) -> str:
        return "" if is_loopback(self.address.host) else "broker"

    def private_files(self) -> Sequence[PrivateFile]:
        key = None if self.tls is None else self.tls.key
        return [] if key is None else [PrivateFile("tls.key", key)]

    def warnings(self) -> Sequence[ConfigWarning]:
        found = []
        address = self.address
        if not address.tls and not is_loopback(address.host):
            text = "any host on the way to the broker can read and change messages: the connection is not encrypted"
            found.append(ConfigWarning("broker", text, "write mqtts://, and set tls"))
        if self.durable and not self.session_expiry_s:
            text = "the broker drops messages for this endpoint while it is away: session_expiry_s is 0"
            found.append(ConfigWarning("durable", text, "set session_expiry_s to the longest time away"))
        if self.clean_start and self.session_expiry_s:
            text = "each start drops what the broker kept for this endpoint"
            found.append(ConfigWarning("clean_start", text, "leave clean_start out"))
        if self.topics == "off_vehicle" and ANY_AUTHORITY in self.receive_for:
            text = "the broker is asked for the messages to all vehicles"
            found.append(ConfigWarning("receive_for", text, "name the authorities of this vehicle"))
        return found
