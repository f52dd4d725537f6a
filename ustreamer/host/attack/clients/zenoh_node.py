# SPDX-License-Identifier: Apache-2.0
"""A hostile Zenoh node: any key, any attachment, any source. It counts what it receives."""

import json
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Final

import msgspec
import zenoh

from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transports.zenoh.decoder import VERSION_BYTE
from ustreamer.transports.zenoh.keys import NO_SINK
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode, encode

ENTITY: Final = 0xBAD
_MAX_KEPT: Final = 1_000
"""Responses kept; the others are dropped."""


def uri_chunks(uri: UUri) -> str:
    """The five chunks of an address in a key."""
    return f"{uri.authority_name}/{uri.ue_type:X}/{uri.ue_instance:X}/{uri.ue_version_major:X}/{uri.resource_id:X}"


class ZenohNode:
    """A session in client mode at one network, as the uEntity `address`."""

    def __init__(self, locator: str, authority: str) -> None:
        self.address = UUri(authority, ENTITY, 1, 0)
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        config = zenoh.Config()
        for key, value in (
            ("mode", "client"),
            ("connect/endpoints", [locator]),
            ("scouting/multicast/enabled", False),
        ):
            config.insert_json5(key, json.dumps(value))
        self.session = zenoh.open(config)
        self._lock = Lock()
        self._responses: dict[UUID, SimpleQueue[UMessage]] = {}
        self.received: SimpleQueue[str] = SimpleQueue()
        """Keys of all other messages to this node's authority, the first ones."""
        self._subscriber = self.session.declare_subscriber(f"up/*/*/*/*/*/{authority}/**", self._on_sample)

    def close(self) -> None:
        self.session.close()  # type: ignore[no-untyped-call]

    def _on_sample(self, sample: Any) -> None:
        if sample.attachment is None:
            return
        id, attributes = decode(sample.attachment.to_bytes()[1:])
        with self._lock:
            waiting = self._responses.get(attributes.reqid) if attributes.reqid is not None else None
        if waiting is not None:
            waiting.put(UMessage(id, attributes, sample.payload.to_bytes()))
        elif self.received.qsize() < _MAX_KEPT:
            self.received.put(str(sample.key_expr))

    # --- sending ------------------------------------------------------------------------------------------------------

    def put(self, key: str, attachment: bytes | None, payload: bytes = b"") -> None:
        """Put any bytes on any key. An attacker drops rather than waits."""
        self.session.put(key, payload, attachment=attachment, congestion_control=zenoh.CongestionControl.DROP)

    def send(
        self,
        attributes: UAttributes,
        payload: bytes = b"",
        *,
        key: str | None = None,
        id: UUID | None = None,
    ) -> UUID:
        """Send a message, by default on the key of its attributes and with a new id."""
        id = id or self.ids.next()
        self.put(key or key_of(attributes), VERSION_BYTE + encode(id, attributes), payload)
        return id

    def request(
        self,
        method: UUri,
        payload: bytes = b"",
        *,
        source: UUri | None = None,
        ttl: int = 5_000,
        permission_level: int | None = None,
    ) -> UUID:
        """Call a method without waiting for its response."""
        return self.send(request_attributes(source or self.address, method, ttl, permission_level), payload)

    def call(
        self, method: UUri, payload: bytes = b"", *, wait_s: float = 2.0, **keys: Any
    ) -> UMessage | None:
        """Call a method; its response, or None if none arrives in time."""
        id = self.ids.next()
        waiting: SimpleQueue[UMessage] = SimpleQueue()
        with self._lock:
            self._responses[id] = waiting
        attributes = request_attributes(
            keys.get("source") or self.address, method, keys.get("ttl", 5_000), keys.get("permission_level")
        )
        try:
            self.send(attributes, payload, id=id)
            return waiting.get(timeout=wait_s)
        except Empty:
            return None
        finally:
            with self._lock:
                del self._responses[id]

    def subscribe_slowly(self, key: str, on_sample: Callable[[Any], None]) -> Any:
        """Receive a key with a callback that may block: a reader that does not read."""
        return self.session.declare_subscriber(key, on_sample)


def request_attributes(
    source: UUri, method: UUri, ttl: int = 5_000, permission_level: int | None = None
) -> UAttributes:
    return UAttributes(
        type=UMessageType.REQUEST,
        source=source,
        sink=method,
        priority=UPriority.CS4,
        ttl=ttl,
        permission_level=permission_level,
        payload_format=UPayloadFormat.PROTOBUF,
    )


def publication(topic: UUri, **keys: Any) -> UAttributes:
    return UAttributes(type=UMessageType.PUBLISH, source=topic, priority=UPriority.CS1, **keys)


def notification_attributes(source: UUri, sink: UUri) -> UAttributes:
    return UAttributes(type=UMessageType.NOTIFICATION, source=source, sink=sink, priority=UPriority.CS1)


def response_attributes(source: UUri, sink: UUri, reqid: UUID) -> UAttributes:
    attributes = UAttributes(
        type=UMessageType.RESPONSE, source=source, sink=sink, priority=UPriority.CS4, reqid=reqid
    )
    return msgspec.structs.replace(attributes, ttl=5_000)


def key_of(attributes: UAttributes) -> str:
    """The key of a message. Nothing is checked."""
    sink = NO_SINK if attributes.sink is None else uri_chunks(attributes.sink)
    return f"up/{uri_chunks(attributes.source)}/{sink}"
