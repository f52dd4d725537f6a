# SPDX-License-Identifier: Apache-2.0
"""The listener of a durable endpoint. In: received messages; they go on to the ingress.

The record of a Request leaves the spool some ms after its send. A kill in between sends the Request again. So a
Response is dispatched only after the record of its Request has left the disk: no answered Request is repeated.
"""

from collections.abc import Sequence
from typing import Protocol

from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.utransport import BatchListener
from ustreamer.uprotocol.uuid import UUID


class SentRequests(Protocol):
    """The Requests of a durable queue whose records may still be on disk."""

    @property
    def has_sent_requests(self) -> bool:
        """Whether there is one."""
        ...

    def wait_deleted(self, answered: Sequence[UUID]) -> None:
        """Delete the records of these Requests, and wait until they have left the disk."""
        ...


class AnsweredFirst:
    """Waits for the disk only if the Request of a Response has a record, which is rare: it waited for 10 ms."""

    def __init__(self, ingress: BatchListener, sent: SentRequests) -> None:
        self._ingress = ingress
        self._sent = sent

    def __call__(self, message: UMessage, /) -> None:
        reqid = message.attributes.reqid
        if reqid is not None and self._sent.has_sent_requests:
            self._sent.wait_deleted([reqid])
        self._ingress(message)

    def on_batch(self, messages: Sequence[UMessage], /) -> None:
        if self._sent.has_sent_requests:
            shared = messages.reqids if type(messages) is MessageBatch else None
            reqids = [each.attributes.reqid for each in messages] if shared is None else shared
            self._sent.wait_deleted([each for each in reqids if each is not None])
        self._ingress.on_batch(messages)
