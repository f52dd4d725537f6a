# SPDX-License-Identifier: Apache-2.0
"""An RPC client over any UTransport, for uEntities, tests and the demo. The streamer itself only forwards calls."""

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from threading import Lock
from typing import Final

from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import decode_status

_MS_PER_S: Final = 1000


class RpcClient:
    """Calls methods as the uEntity `reply_to` (resource 0) and matches responses by reqid. Thread-safe."""

    def __init__(
        self, transport: UTransport, reply_to: UUri, ids: UuidSource, *, max_pending: int = 1_000
    ) -> None:
        self._transport = transport
        self._reply_to = reply_to
        self._ids = ids
        self._max_pending = max_pending
        self._pending: dict[UUID, Future[UMessage]] = {}
        self._lock = Lock()
        transport.register_listener(ANY, reply_to, self._on_message)

    def call(
        self,
        method: UUri,
        payload: bytes = b"",
        payload_format: UPayloadFormat = UPayloadFormat.UNSPECIFIED,
        *,
        ttl: int = 5_000,
        priority: UPriority = UPriority.CS4,
    ) -> UMessage:
        """Call `method`, and then wait for its response, at most `ttl` ms. `send` may wait, too.

        Raises UStatusError: with the code and text of an error Response [impl->dsn~service-error-model-failed-rpc~1],
        DEADLINE_EXCEEDED without a response in time, RESOURCE_EXHAUSTED above `max_pending` pending calls.
        """
        id, future = self._open_call()
        try:
            self._transport.send(
                request(id, self._reply_to, method, payload, payload_format, ttl=ttl, priority=priority)
            )
            try:  # without `send`: its TimeoutError means something else
                response = future.result(ttl / _MS_PER_S)
            except FutureTimeout:
                text = f"no answer from {method} within {ttl} ms"
                raise UStatusError(UCode.DEADLINE_EXCEEDED, text) from None
        finally:
            with self._lock:
                self._pending.pop(id, None)
        return _checked(response)

    def _open_call(self) -> tuple[UUID, Future[UMessage]]:
        future: Future[UMessage] = Future()
        with self._lock:
            if len(self._pending) >= self._max_pending:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED, f"{self._max_pending} calls of {self._reply_to} are open"
                )
            id = self._ids.next()
            self._pending[id] = future
        return id, future

    def _on_message(self, message: UMessage) -> None:
        reqid = message.attributes.reqid
        if message.attributes.type is not UMessageType.RESPONSE or reqid is None:
            return
        with self._lock:
            future = self._pending.pop(reqid, None)
        if future is not None:
            future.set_result(message)

    def close(self) -> None:
        """Unregister the listener; pending calls end with their deadline."""
        self._transport.unregister_listener(ANY, self._reply_to, self._on_message)


def _checked(response: UMessage) -> UMessage:
    code = response.attributes.commstatus
    if not code:
        return response
    status = _status_of(response, code)
    raise UStatusError(status.code, status.message)


def _status_of(response: UMessage, code: UCode) -> UStatus:
    """The UStatus in an error Response; only the code if the payload is not a UStatus."""
    try:
        status = decode_status(response.payload)
    except UStatusError:
        return UStatus(code)
    return status if status.code is code else UStatus(code)
