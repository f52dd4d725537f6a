# SPDX-License-Identifier: Apache-2.0
"""core.ustreamer, the uEntity that the streamer itself is: `//<authority>/4/1`.

It publishes dead letters (`ustreamer.core.dead_letter`). It has no methods yet, and says so to whoever calls one.
"""

from collections.abc import Sequence

from ustreamer.core.clock import Clock
from ustreamer.core.dead_letter import USTREAMER, USTREAMER_VERSION
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage, error_response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_RESOURCE, ANY_VERSION, UUri


class OwnEntity:
    """A `ustreamer.hookspecs.Service` that answers every call with UNIMPLEMENTED."""

    _bus: UTransport  # from `start` on

    def __init__(self, authority: str, clock: Clock) -> None:
        self._address = UUri(authority, USTREAMER, USTREAMER_VERSION)
        self._ids = UuidSource(clock.wall_ms)

    @property
    def entities(self) -> Sequence[UUri]:
        return (self._address,)

    def start(self, bus: UTransport) -> None:
        self._bus = bus
        everything = UUri(self._address.authority_name, USTREAMER, ANY_VERSION, ANY_RESOURCE)
        bus.register_listener(ANY, everything, self._answer)

    def _answer(self, message: UMessage) -> None:
        if message.attributes.type is UMessageType.REQUEST:
            status = UStatus(
                UCode.UNIMPLEMENTED, f"{message.attributes.sink}: core.ustreamer has no methods yet"
            )
            self._bus.send(error_response(self._ids.next(), message, status))

    def stop(self) -> None:
        """Nothing is held open."""
