# SPDX-License-Identifier: Apache-2.0
"""Messages as topic, properties and payload of a PUBLISH packet. What messages of one topic share is made once."""

from threading import Lock
from typing import Final, NamedTuple

import msgspec

from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import invalid_argument
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.properties import encode, pack, pack_fields, with_length
from ustreamer_mqtt.topics import device_topic_of, topic_of

_CACHED: Final = 4_096


class _Shared(NamedTuple):
    """The topic, and the properties before and after the id."""

    topic: str
    before: bytes
    after: bytes


class MessageEncoder:
    """For one endpoint. `authority` replaces an empty one. From any thread."""

    def __init__(self, config: MqttEndpoint, authority: str) -> None:
        self._authority = authority
        self._backend = config.authorities[0] if config.topics == "off_vehicle" else None
        self._cached: BoundedCache[UAttributes, _Shared] = BoundedCache(_CACHED)
        self._lock = Lock()

    def encode(self, message: UMessage) -> tuple[str, bytes]:
        """Topic and block of properties. Raises UStatusError(INVALID_ARGUMENT) for a message that breaks the rules."""
        shared = self._cached.get(message.attributes)
        text = str(message.id).encode()
        if shared is not None and message.id.is_valid:
            return shared.topic, with_length(b"".join((shared.before, text, shared.after)))
        message.check(strict=False)
        attributes = self._with_own_authority(message.attributes)
        topic = self._topic_of(attributes)
        properties = encode(message.id, attributes)
        if not message.attributes.is_cacheable:
            return topic, pack(properties)
        block = pack_fields(properties)
        before, _, after = block.partition(text)
        with self._lock:
            self._cached.add(message.attributes, _Shared(topic, before, after))
        return topic, with_length(block)

    def shorten(self, message: UMessage, left_s: int) -> bytes:
        """The block of properties of a message that was encoded before, with `left_s` s as the rest of its ttl."""
        return pack(encode(message.id, self._with_own_authority(message.attributes), left_s))

    def _topic_of(self, attributes: UAttributes) -> str:
        """A publication goes to the authority behind the endpoint, where a topic needs one."""
        sink = attributes.sink
        if self._backend is None:
            return topic_of(attributes.source, sink)
        topic_of(attributes.source, sink)  # refuses wildcards
        return device_topic_of(attributes.source, self._backend if sink is None else sink.authority_name)

    def _with_own_authority(self, attributes: UAttributes) -> UAttributes:
        """Our authority instead of an empty one: a local address is not local at the receiver.

        The sink that a streamer may have added to a publication is removed (X-22), as on Zenoh.
        """
        source, sink = attributes.source, attributes.sink
        if attributes.type is UMessageType.PUBLISH:
            sink = None
        elif sink is None:
            raise invalid_argument(f"{attributes.type.name} without a sink")
        source, sink = source.with_authority(self._authority), sink and sink.with_authority(self._authority)
        if source is attributes.source and sink is attributes.sink:
            return attributes
        return msgspec.structs.replace(attributes, source=source, sink=sink)
