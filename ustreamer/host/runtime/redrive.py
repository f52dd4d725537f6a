# SPDX-License-Identifier: Apache-2.0
"""Repeats the dispatch of dead letters."""

from collections.abc import Collection
from threading import Lock
from typing import Final

from ustreamer.core.base.clock import Clock
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.host.admin.status import Redriven
from ustreamer.host.storage.dead_letter_store import DeadLetterStore
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource

_KEPT_BITS: Final = 0xFFFF_FFFF


class Redriver:
    """Dispatches a dead letter as if its ingress received it now. The dead letter stays in the store.

    The message gets a new id with the current time. With the old id its ttl would be over, and receivers would drop it
    as a duplicate. Its last 32 bits stay: a SOME/IP endpoint keeps the request id of a header in them.
    """

    def __init__(
        self, store: DeadLetterStore, dispatcher: Dispatcher, endpoints: Collection[str], clock: Clock
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._endpoints = endpoints
        self._ids, self._lock = UuidSource(clock.wall_ms), Lock()

    def __call__(self, number: int) -> Redriven:
        """Raises UStatusError: NOT_FOUND; or FAILED_PRECONDITION if the payload was not stored, the ingress endpoint
        no longer exists, or a peer now forwards the message.
        """
        letter = self._store.get(number)
        if letter.payload is None:
            text = f"its payload of {letter.payload_size} bytes was too large to be kept"
        elif letter.ingress not in self._endpoints:
            text = f"its ingress was {letter.ingress!r} (have: {', '.join(self._endpoints)})"
        elif self._dispatcher.ingress(letter.ingress).defers_to_peer(
            letter.message.attributes, letter.endpoint
        ):
            text = f"a peer streamer forwards such messages to {letter.endpoint!r}, and does not receive from this one"
        else:
            before = letter.message
            with self._lock:
                new = self._ids.next()
            id = UUID(new.msb, new.lsb & ~_KEPT_BITS | before.id.lsb & _KEPT_BITS)
            message = UMessage(id, before.attributes, before.payload)
            self._dispatcher.ingress(letter.ingress).dispatch(message)
            return Redriven(number, str(before.id), str(id))
        raise UStatusError(UCode.FAILED_PRECONDITION, f"dead letter {number}: {text}")
