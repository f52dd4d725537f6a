# SPDX-License-Identifier: Apache-2.0
"""What the service says: answers to requests, and changes to everybody whom they concern."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias

from google.protobuf.message import Message

from ustreamer.core.routing.usubscription_codec import pack_payload
from ustreamer.uprotocol.umessage import UMessage, error_response, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer_usubscription.inbox import MAX_BATCH
from ustreamer_usubscription.model.subscription import SubscriptionStatusChange
from ustreamer_usubscription.requests.updates import update_messages

RequestOutcome: TypeAlias = Message | UStatus
"""What is answered: a message, or why there is none."""

UPDATES_PER_TICK: Final = 2 * MAX_BATCH
"""Changes told at most before requests are looked at again, and then every 100 ms.

A Reset may end a million subscriptions at once, and an egress queue holds 10 000 messages. A batch of requests makes at
most half as many changes, apart from a Reset; so what waits is never more than there were subscriptions, and shrinks.
"""

log = logging.getLogger("ustreamer.usubscription")


class ServiceOutbox:
    """Sends, and counts what could not be sent: each kind is said once and counted always. One thread at a time."""

    def __init__(self, send: Callable[[UMessage], None], authority: str, next_id: Callable[[], UUID]) -> None:
        """`send` raises UStatusError; updates come from core.usubscription at `authority`."""
        self.counts: Counter[str] = Counter()
        self._transport_send = send
        self._authority = authority
        self._next_id = next_id
        self._updates: deque[SubscriptionStatusChange] = deque()

    def send_response(self, message: UMessage, outcome: RequestOutcome) -> None:
        """Answer a request in the style in which it came."""
        if isinstance(outcome, UStatus):
            self.counts[refusal_counter(outcome.code)] += 1
            reply = error_response(self._next_id(), message, outcome)
        else:
            self.counts["answered"] += 1
            reply = response(
                self._next_id(), message, *pack_payload(outcome, message.attributes.payload_format)
            )
        self._send(reply, "response")

    def enqueue_changes(self, changes: Iterable[SubscriptionStatusChange]) -> None:
        """Have these changes told, after those that wait already."""
        self._updates.extend(changes)

    def send_updates(self) -> None:
        """Tell the next changes, oldest first; the rest is for the next turn."""
        for _ in range(min(UPDATES_PER_TICK, len(self._updates))):
            for message in update_messages(self._updates.popleft(), self._authority, self._next_id):
                self._send(message, "update")
            self.counts["updates"] += 1

    def close(self) -> None:
        """Drop the changes that have not been told, and say how many they were."""
        if self._updates:
            log.warning("usubscription.updates_not_sent", extra={"count": len(self._updates)})
            self._updates.clear()

    def __len__(self) -> int:
        """How many changes wait to be told."""
        return len(self._updates)

    def _send(self, message: UMessage, kind: Literal["response", "update"]) -> None:
        try:
            self._transport_send(message)
        except UStatusError as error:
            counter = "unsent" if kind == "response" else "updates_unsent"
            if not self.counts[counter]:
                extra = {"to": str(message.attributes.sink), "reason": str(error)}
                log.warning("usubscription.%s_not_sent", kind, extra=extra)
            self.counts[counter] += 1


def refusal_counter(code: UCode) -> str:
    """The counter of refusals with this code."""
    return f"refused_{code.name.lower()}"
