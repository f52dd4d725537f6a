# SPDX-License-Identifier: Apache-2.0
"""Sends one event with E2E protection to one receiver. Any thread."""

from collections.abc import Callable
from threading import Lock

from ustreamer.transports.someip.protocol.codec import MessageType, ReturnCode
from ustreamer.transports.someip.protocol.e2e import E2eProtector, covered_header
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.transports.someip.protocol.mapping import EventTemplate, encode_event
from ustreamer.uprotocol.umessage import UMessage


class E2eSender:
    """A receiver has a counter of its own, so a throttled receiver sees no gaps. A multicast group is one receiver."""

    def __init__(self, config: E2eConfig) -> None:
        self._protector = E2eProtector(config)
        self._lock = Lock()

    def send(
        self,
        event: EventTemplate,
        request_id: int,
        message: UMessage,
        send: Callable[[bytes], None],
        *,
        repeats: bool = False,
    ) -> None:
        """Protect and send. A message that failed its check on the way in is sent with an invalid CRC.

        With `repeats` the message has the counter of the event before: it is the first one of a further receiver.

        An event that `send` refuses has not used the counter. Raises what `send` raises, and UStatusError for a payload
        that cannot be protected.
        """
        header = covered_header(request_id, event.major, MessageType.NOTIFICATION, ReturnCode.E_OK)
        valid = not message.attributes.commstatus
        with self._lock:
            payload = self._protector.protect(header, message.payload, valid=valid, repeats=repeats)
            send(encode_event(event, request_id, payload))
            if not repeats:
                self._protector.advance()
