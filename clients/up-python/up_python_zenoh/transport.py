# SPDX-License-Identifier: Apache-2.0
"""The UTransport of up-python on a Zenoh session.

Zenoh's calls may wait, so one thread of the transport does all of them in their order. The event loop never waits.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import zenoh
from google.protobuf.message import DecodeError
from uprotocol.communication.ustatuserror import UStatusError
from uprotocol.transport.ulistener import UListener
from uprotocol.transport.utransport import UTransport
from uprotocol.transport.validator.uattributesvalidator import UAttributesValidator
from uprotocol.uri.factory.uri_factory import UriFactory
from uprotocol.v1.uattributes_pb2 import UAttributes, UMessageType, UPriority
from uprotocol.v1.ucode_pb2 import UCode
from uprotocol.v1.umessage_pb2 import UMessage
from uprotocol.v1.uri_pb2 import UUri
from uprotocol.v1.ustatus_pb2 import UStatus

from up_python_zenoh.inbox import ListenerInbox
from up_python_zenoh.keys import WrongAddress, authorities_of, filter_key, message_key

MAX_WAITING: Final = 1_000
"""Messages that wait for one listener."""
_LOG: Final = logging.getLogger("up_python_zenoh")
_VERSION: Final = b"\x01"
"""The first byte of an attachment; a protobuf UAttributes follows."""
_FENCE: Final = "up-python-zenoh/fence"
_FENCE_S: Final = 1.0
_PRIORITIES: Final = {
    UPriority.UPRIORITY_UNSPECIFIED: zenoh.Priority.DATA_LOW,
    UPriority.UPRIORITY_CS0: zenoh.Priority.BACKGROUND,
    UPriority.UPRIORITY_CS1: zenoh.Priority.DATA_LOW,
    UPriority.UPRIORITY_CS2: zenoh.Priority.DATA,
    UPriority.UPRIORITY_CS3: zenoh.Priority.DATA_HIGH,
    UPriority.UPRIORITY_CS4: zenoh.Priority.INTERACTIVE_LOW,
    UPriority.UPRIORITY_CS5: zenoh.Priority.INTERACTIVE_HIGH,
    UPriority.UPRIORITY_CS6: zenoh.Priority.REAL_TIME,
}
"""The table of up-l1/zenoh.adoc."""
_Registration = tuple[str, UListener]


def client_config(*locators: str) -> zenoh.Config:
    """A Zenoh client of the router, or of the streamer, at one of the locators, such as `tcp/127.0.0.1:7447`."""
    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps(locators))
    config.insert_json5("scouting/multicast/enabled", "false")
    return config


class UpPythonTransport(UTransport):
    """Sends and receives for one uEntity, in one event loop.

    `dropped` counts messages that came while `max_waiting` others waited for the same listener, and expired ones.
    `refused` counts samples that are no valid message.
    """

    def __init__(
        self, source: UUri, session: zenoh.Session, executor: ThreadPoolExecutor, max_waiting: int
    ) -> None:
        """Use `open`."""
        self.dropped = self.refused = 0
        self._source = source
        self._session = session
        self._executor = executor
        self._max_waiting = max_waiting
        self._listeners: dict[_Registration, tuple[zenoh.Subscriber[None], ListenerInbox]] = {}
        self._registering = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(cls, source: UUri, config: zenoh.Config, max_waiting: int = MAX_WAITING) -> Self:
        """A transport for the entity `source`, whose authority is not empty and whose resource is 0.

        Raises UStatusError: INVALID_ARGUMENT for another source, UNAVAILABLE if Zenoh cannot connect.
        """
        try:
            message_key(source, None, "")
        except WrongAddress as error:
            raise UStatusError.from_code_message(UCode.INVALID_ARGUMENT, f"source: {error}") from None
        if source.resource_id:
            text = f"source: resource {source.resource_id:#x}, expected 0: the address of an entity"
            raise UStatusError.from_code_message(UCode.INVALID_ARGUMENT, text)
        executor = ThreadPoolExecutor(1, "up-python-zenoh")
        try:
            session = await asyncio.get_running_loop().run_in_executor(executor, zenoh.open, config)
        except zenoh.ZError as error:
            executor.shutdown(wait=False)
            raise UStatusError.from_code_message(UCode.UNAVAILABLE, f"no Zenoh session: {error}") from None
        return cls(source, session, executor, max_waiting)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def get_source(self) -> UUri:
        """The address of the entity."""
        return self._source

    async def send(self, message: UMessage) -> UStatus:
        """OK if Zenoh has taken the message, which waits while the network is congested.

        Else INVALID_ARGUMENT, or UNAVAILABLE if no Zenoh node is connected. An empty authority becomes that of the
        source of this transport.
        """
        wrong = _mistake_in(message.attributes)
        if wrong:
            return UStatus(code=UCode.INVALID_ARGUMENT, message=wrong)
        attributes = UAttributes()
        attributes.CopyFrom(message.attributes)
        _fill_authorities(attributes, self._source.authority_name, self._source.authority_name)
        try:
            key = message_key(attributes.source, _sink_of(attributes), "")
        except WrongAddress as error:
            return UStatus(code=UCode.INVALID_ARGUMENT, message=str(error))
        return await self._run(lambda: self._put(key, attributes, message.payload))

    def _put(self, key: str, attributes: UAttributes, payload: bytes) -> UStatus:
        info = self._session.info
        if not info.routers_zid() and not info.peers_zid():
            return UStatus(code=UCode.UNAVAILABLE, message="no Zenoh node is connected")
        self._session.put(
            key,
            payload,
            attachment=_VERSION + attributes.SerializeToString(),
            priority=_PRIORITIES[attributes.priority],
            congestion_control=zenoh.CongestionControl.BLOCK,
        )
        return UStatus(code=UCode.OK)

    async def register_listener(
        self, source_filter: UUri, listener: UListener, sink_filter: UUri | None = UriFactory.ANY
    ) -> UStatus:
        """Calls of one listener come one after the other. A repeated registration has no effect.

        A sink filter of None matches publications only; `UriFactory.ANY`, the default of up-python, matches all
        messages. When it returns, the next Zenoh router knows the listener.
        """
        try:
            key = filter_key(source_filter, sink_filter, self._source.authority_name)
        except WrongAddress as error:
            return UStatus(code=UCode.INVALID_ARGUMENT, message=str(error))
        async with self._registering:
            if (key, listener) in self._listeners:
                return UStatus(code=UCode.OK)
            inbox = ListenerInbox(listener, self._max_waiting, self._count_dropped)
            declared: list[zenoh.Subscriber[None]] = []
            status = await self._run(lambda: self._declare(key, inbox, declared))
            if declared:
                self._listeners[key, listener] = declared[0], inbox
            else:
                await inbox.close()
            return status

    def _declare(self, key: str, inbox: ListenerInbox, declared: list[zenoh.Subscriber[None]]) -> UStatus:
        declared.append(self._session.declare_subscriber(key, lambda sample: self._on_sample(sample, inbox)))
        # A query without a reply ends after the declarations before it have arrived at the next node.
        list(self._session.get(_FENCE, timeout=_FENCE_S))
        return UStatus(code=UCode.OK)

    def _on_sample(self, sample: zenoh.Sample, inbox: ListenerInbox) -> None:
        attachment = b"" if sample.attachment is None else sample.attachment.to_bytes()
        message = _decoded(str(sample.key_expr), attachment, sample.payload.to_bytes())
        if message is None:
            self.refused += 1
            _LOG.warning("refused a sample on %s, whose attachment does not fit", sample.key_expr)
        else:
            inbox.put(message)

    def _count_dropped(self) -> None:
        self.dropped += 1

    async def unregister_listener(
        self, source_filter: UUri, listener: UListener, sink_filter: UUri | None = UriFactory.ANY
    ) -> UStatus:
        """NOT_FOUND without such a registration. No call starts after the return."""
        try:
            key = filter_key(source_filter, sink_filter, self._source.authority_name)
        except WrongAddress as error:
            return UStatus(code=UCode.INVALID_ARGUMENT, message=str(error))
        async with self._registering:
            found = self._listeners.pop((key, listener), None)
            if found is None:
                return UStatus(code=UCode.NOT_FOUND, message=f"no such listener for {key}")
            subscriber, inbox = found
            status = await self._run(lambda: _undeclare(subscriber))
            await inbox.close()
            return status

    async def close(self) -> None:
        """Ends all registrations and the session. A second call has no effect."""
        async with self._registering:
            if self._closed:
                return
            self._closed = True
            for _, inbox in self._listeners.values():
                await inbox.close()
            self._listeners.clear()
            await asyncio.get_running_loop().run_in_executor(self._executor, self._session.close)
            self._executor.shutdown(wait=False)

    async def _run(self, work: Callable[[], UStatus]) -> UStatus:
        """Do it on the thread of the transport. An error of Zenoh becomes UNAVAILABLE."""
        if self._closed:
            return UStatus(code=UCode.UNAVAILABLE, message="the transport is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except zenoh.ZError as error:
            return UStatus(code=UCode.UNAVAILABLE, message=f"Zenoh: {error}")


def _undeclare(subscriber: "zenoh.Subscriber[None]") -> UStatus:
    subscriber.undeclare()  # type: ignore[no-untyped-call]
    return UStatus(code=UCode.OK)


def _mistake_in(attributes: UAttributes) -> str:
    """What is wrong by the rules of the type of a message; empty if it is valid."""
    # up-python's validators raise for numbers that are not in an enumeration.
    if attributes.type not in UMessageType.values():
        return f"type {attributes.type}: expected one of {UMessageType.keys()}"
    if attributes.priority not in _PRIORITIES:
        return f"priority {attributes.priority}: expected one of {UPriority.keys()}"
    checked = UAttributesValidator.get_validator(attributes).validate(attributes)
    return str(checked.get_message()) if checked.is_failure() else ""


def _sink_of(attributes: UAttributes) -> UUri | None:
    """The sink, of which a publication has none."""
    return None if attributes.type == UMessageType.UMESSAGE_TYPE_PUBLISH else attributes.sink


def _fill_authorities(attributes: UAttributes, of_source: str, of_sink: str) -> None:
    """Replace empty authorities, in place."""
    attributes.source.authority_name = attributes.source.authority_name or of_source
    if _sink_of(attributes) is not None:
        attributes.sink.authority_name = attributes.sink.authority_name or of_sink


def _decoded(key: str, attachment: bytes, payload: bytes) -> UMessage | None:
    """The message of a sample. None if there is none, or if its attributes are not those of its key.

    Access rules of a Zenoh network apply to keys, so other attributes could bypass them.
    """
    if attachment[:1] != _VERSION:
        return None
    try:
        attributes = UAttributes.FromString(attachment[1:])
        of_key = authorities_of(key)
        _fill_authorities(attributes, of_key.source, of_key.sink or "")
        if message_key(attributes.source, _sink_of(attributes), "") != key:
            return None
    except (DecodeError, WrongAddress):
        return None
    attributes.priority = attributes.priority or UPriority.UPRIORITY_CS1  # the default of up-spec
    if _mistake_in(attributes):
        return None
    return UMessage(attributes=attributes, payload=payload or None)
