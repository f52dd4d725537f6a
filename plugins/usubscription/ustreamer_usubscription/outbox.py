# SPDX-License-Identifier: Apache-2.0
"""Sends Responses to Requests, and Updates to subscribers and observers."""

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
"""The outcome of a Request: a response message, or the status of its refusal."""

UPDATES_PER_TICK: Final = 2 * MAX_BATCH
"""Changes sent at most between two batches of Requests, and then every 100 ms.

A Reset may end a million subscriptions at once, and an egress queue holds 10 000 messages. Any other batch of
Requests makes at most half as many changes, so the backlog is bounded by the number of subscriptions, and shrinks.
"""

log = logging.getLogger("ustreamer.usubscription")


class ServiceOutbox:
    """Sends Responses and Updates. Unsent ones are counted, and logged once per kind. One thread at a time."""

    def __init__(self, send: Callable[[UMessage], None], authority: str, next_id: Callable[[], UUID]) -> None:
        """`send` raises UStatusError; updates come from core.usubscription at `authority`."""
        self.counts: Counter[str] = Counter()
        self._transport_send = send
        self._authority = authority
        self._next_id = next_id
        self._updates: deque[SubscriptionStatusChange] = deque()

    def send_response(self, message: UMessage, outcome: RequestOutcome) -> None:
        """Send the Response in the payload format of the Request."""
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
        """Enqueue changes behind those that wait."""
        self._updates.extend(changes)

    def send_updates(self) -> None:
        """Send the next changes, oldest first; the rest is for the next call."""
        for _ in range(min(UPDATES_PER_TICK, len(self._updates))):
            for message in update_messages(self._updates.popleft(), self._authority, self._next_id):
                self._send(message, "update")
            self.counts["updates"] += 1

    def close(self) -> None:
        """Drop the changes that were not sent, and log their number."""
        if self._updates:
            log.warning("usubscription.updates_not_sent", extra={"count": len(self._updates)})
            self._updates.clear()

    def __len__(self) -> int:
        """The number of changes that wait."""
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
