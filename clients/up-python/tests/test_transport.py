# SPDX-License-Identifier: Apache-2.0
"""Two transports on one Zenoh router. These tests run where up-python is installed: see tests/e2e/clients."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
import zenoh
from up_python_zenoh import UpPythonTransport, client_config
from up_python_zenoh.inbox import ListenerInbox
from uprotocol.communication.calloptions import CallOptions
from uprotocol.communication.inmemoryrpcclient import InMemoryRpcClient
from uprotocol.communication.inmemoryrpcserver import InMemoryRpcServer
from uprotocol.communication.requesthandler import RequestHandler
from uprotocol.communication.upayload import UPayload
from uprotocol.communication.ustatuserror import UStatusError
from uprotocol.transport.builder.umessagebuilder import UMessageBuilder
from uprotocol.transport.ulistener import UListener
from uprotocol.uri.factory.uri_factory import UriFactory
from uprotocol.v1.uattributes_pb2 import UPayloadFormat, UPriority
from uprotocol.v1.ucode_pb2 import UCode
from uprotocol.v1.umessage_pb2 import UMessage
from uprotocol.v1.uri_pb2 import UUri

DEADLINE_S = 10.0
NEAR = UUri(authority_name="near", ue_id=0xA001, ue_version_major=1)
FAR = UUri(authority_name="far", ue_id=0x2_A002, ue_version_major=2)
TOPIC = UUri(authority_name="near", ue_id=0xA001, ue_version_major=1, resource_id=0x8001)
METHOD = UUri(authority_name="near", ue_id=0xA001, ue_version_major=1, resource_id=1)


class Collected(UListener):
    """Collects messages. `gate` holds the first call back."""

    def __init__(self) -> None:
        self.messages: list[UMessage] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self._changed = asyncio.Condition()

    async def on_receive(self, umsg: UMessage) -> None:
        self.called.set()
        await self.gate.wait()
        async with self._changed:
            self.messages.append(umsg)
            self._changed.notify_all()

    async def wait(self, count: int = 1) -> list[UMessage]:
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(lambda: len(self.messages) >= count)
        return self.messages


@pytest.fixture(scope="module")
def locator() -> Iterator[str]:
    """A router of its own, at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = zenoh.Config()
    config.insert_json5("mode", '"router"')
    config.insert_json5("listen/endpoints", json.dumps([f"tcp/127.0.0.1:{port}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config):
        yield f"tcp/127.0.0.1:{port}"


@pytest.fixture
async def near(locator: str) -> AsyncIterator[UpPythonTransport]:
    async with await UpPythonTransport.open(NEAR, client_config(locator)) as transport:
        yield transport


@pytest.fixture
async def far(locator: str) -> AsyncIterator[UpPythonTransport]:
    async with await UpPythonTransport.open(FAR, client_config(locator)) as transport:
        yield transport


def publication(number: int) -> UMessage:
    payload = UPayload(b"%d" % number, UPayloadFormat.UPAYLOAD_FORMAT_TEXT)
    return UMessageBuilder.publish(TOPIC).build_from_upayload(payload)


async def send(transport: UpPythonTransport, message: UMessage) -> None:
    status = await transport.send(message)
    assert status.code == UCode.OK, status.message


@pytest.mark.parametrize("sink", [UriFactory.ANY, None], ids=["any", "none"])
async def test_publications_arrive_in_order(
    near: UpPythonTransport, far: UpPythonTransport, sink: UUri | None
) -> None:
    listener = Collected()
    assert (await far.register_listener(TOPIC, listener, sink)).code == UCode.OK
    sent = [publication(number) for number in range(200)]
    for each in sent:
        await send(near, each)
    assert await listener.wait(200) == sent


async def test_a_notification_reaches_its_sink_only(near: UpPythonTransport, far: UpPythonTransport) -> None:
    listener, others = Collected(), Collected()
    await far.register_listener(TOPIC, listener, FAR)
    await far.register_listener(TOPIC, others, None)
    sent = UMessageBuilder.notification(TOPIC, FAR).build()
    await send(near, sent)
    assert await listener.wait() == [sent]
    assert others.messages == []


class Upper(RequestHandler):
    def handle_request(self, message: UMessage) -> UPayload:
        if not message.payload:
            raise UStatusError.from_code_message(UCode.OUT_OF_RANGE, "empty")
        return UPayload(message.payload.upper(), message.attributes.payload_format)


async def test_a_call_gets_its_answer_or_its_error(near: UpPythonTransport, far: UpPythonTransport) -> None:
    server, client = InMemoryRpcServer(near), InMemoryRpcClient(far)
    assert (await server.register_request_handler(METHOD, Upper())).code == UCode.OK
    payload = UPayload(b"warm", UPayloadFormat.UPAYLOAD_FORMAT_TEXT)
    assert await client.invoke_method(METHOD, payload) == UPayload(b"WARM", payload.format)
    with pytest.raises(UStatusError) as failed:
        await client.invoke_method(METHOD, UPayload(b"", payload.format))
    assert failed.value.get_code() == UCode.OUT_OF_RANGE
    assert (
        await server.unregister_request_handler(METHOD, server.request_handlers["//near/A001/1/1"])
    ).code == UCode.OK
    with pytest.raises(UStatusError) as failed:
        await client.invoke_method(METHOD, payload, CallOptions(timeout=200))
    assert failed.value.get_code() == UCode.DEADLINE_EXCEEDED


async def test_after_unregistering_no_call_starts(near: UpPythonTransport, far: UpPythonTransport) -> None:
    listener, last = Collected(), Collected()
    for each in (listener, listener, last):
        assert (await far.register_listener(TOPIC, each)).code == UCode.OK
    assert (await far.unregister_listener(TOPIC, listener)).code == UCode.OK
    assert (await far.unregister_listener(TOPIC, listener)).code == UCode.NOT_FOUND
    await send(near, publication(1))
    await last.wait()
    assert listener.messages == []


class Once(UListener):
    """Unregisters itself, and goes on."""

    def __init__(self, transport: UpPythonTransport) -> None:
        self._transport = transport
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def on_receive(self, umsg: UMessage) -> None:
        await self._transport.unregister_listener(TOPIC, self)
        await asyncio.sleep(0)
        self.ended.set_result(int(umsg.payload))


async def test_a_listener_may_unregister_itself(near: UpPythonTransport, far: UpPythonTransport) -> None:
    once, last = Once(far), Collected()
    await far.register_listener(TOPIC, once)
    await far.register_listener(TOPIC, last)
    for number in range(3):
        await send(near, publication(number))
    await last.wait(3)
    assert await asyncio.wait_for(once.ended, DEADLINE_S) == 0


async def test_a_failing_listener_gets_the_next_message(
    near: UpPythonTransport, far: UpPythonTransport, caplog: pytest.LogCaptureFixture
) -> None:
    class FailsFirst(Collected):
        failed = False

        async def on_receive(self, umsg: UMessage) -> None:
            if not self.failed:
                self.failed = True
                raise RuntimeError("as it wants")
            await super().on_receive(umsg)

    listener = FailsFirst()
    await far.register_listener(TOPIC, listener)
    await send(near, publication(1))
    await send(near, publication(2))
    assert [each.payload for each in await listener.wait()] == [b"2"]
    assert "on_receive failed" in caplog.text


async def test_a_cancelled_listener_gets_the_next_message(
    near: UpPythonTransport, far: UpPythonTransport, caplog: pytest.LogCaptureFixture
) -> None:
    class AwaitsCancelled(Collected):
        async def on_receive(self, umsg: UMessage) -> None:
            if not self.called.is_set():
                self.called.set()
                cancelled = asyncio.get_running_loop().create_future()
                cancelled.cancel()
                await cancelled
            await super().on_receive(umsg)

    listener = AwaitsCancelled()
    await far.register_listener(TOPIC, listener)
    await send(near, publication(1))
    await send(near, publication(2))
    assert [each.payload for each in await listener.wait()] == [b"2"]
    assert "awaited something that was cancelled" in caplog.text


def test_the_end_of_the_loop_ends_a_running_call() -> None:
    async def main() -> None:
        listener = Collected()
        listener.gate.clear()
        inbox = ListenerInbox(listener, 10, lambda: None)
        inbox.put(publication(1))
        await asyncio.wait_for(listener.called.wait(), DEADLINE_S)

    # Else `run` waits for the call for ever, and the time limit of the test ends it.
    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


async def test_a_listener_that_ignores_its_end_delays_the_close_for_a_bounded_time(
    near: UpPythonTransport,
    far: UpPythonTransport,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("up_python_zenoh.inbox.CLOSE_S", 0.05)

    class Stubborn(Collected):
        async def on_receive(self, umsg: UMessage) -> None:
            try:
                await super().on_receive(umsg)
            except asyncio.CancelledError:
                await self.gate.wait()

    listener = Stubborn()
    listener.gate.clear()
    await far.register_listener(TOPIC, listener)
    await send(near, publication(1))
    await asyncio.wait_for(listener.called.wait(), DEADLINE_S)
    await asyncio.wait_for(far.close(), DEADLINE_S)
    assert "goes on after it was cancelled" in caplog.text
    listener.gate.set()


async def test_a_slow_listener_has_a_bound_and_stops_no_other(locator: str, near: UpPythonTransport) -> None:
    async with await UpPythonTransport.open(FAR, client_config(locator), max_waiting=3) as far:
        slow, fast = Collected(), Collected()
        slow.gate.clear()
        await far.register_listener(TOPIC, slow)
        await far.register_listener(TOPIC, fast)
        await send(near, publication(0))
        await asyncio.wait_for(slow.called.wait(), DEADLINE_S)
        for number in range(1, 10):
            await send(near, publication(number))
            await fast.wait(number + 1)
        async with asyncio.timeout(DEADLINE_S):
            while far.dropped < 6:  # noqa: ASYNC110  # it is counted by threads of Zenoh
                await asyncio.sleep(0.01)
        slow.gate.set()
        assert [each.payload for each in await slow.wait(4)] == [b"0", b"1", b"2", b"3"]
        assert far.dropped == 6


async def test_an_expired_message_is_dropped() -> None:
    dropped: list[None] = []
    listener = Collected()
    inbox = ListenerInbox(listener, 10, lambda: dropped.append(None))
    old = UMessageBuilder.publish(TOPIC).with_ttl(1).build()
    old.attributes.id.msb -= 1_000 << 16
    inbox.put(old)
    inbox.put(publication(1))
    assert [each.payload for each in await listener.wait()] == [b"1"]
    assert len(dropped) == 1
    await inbox.close()


async def test_what_can_be_no_message_is_not_sent(near: UpPythonTransport) -> None:
    pattern = UMessageBuilder.publish(
        UUri(authority_name="*", ue_id=1, ue_version_major=1, resource_id=0x8001)
    ).build()
    slash = UMessageBuilder.publish(
        UUri(authority_name="a/b", ue_id=1, ue_version_major=1, resource_id=0x8001)
    ).build()
    low = UMessageBuilder.request(NEAR, METHOD, 100).build()
    low.attributes.priority = UPriority.UPRIORITY_CS1
    foreign = [UMessageBuilder.publish(TOPIC).build() for _ in range(4)]
    for each, (name, number) in zip(
        foreign, [("type", 99), ("priority", -1), ("priority", 99), ("type", -1)], strict=True
    ):
        setattr(each.attributes, name, number)
    for each in (UMessage(), pattern, slash, low, *foreign):
        assert (await near.send(each)).code == UCode.INVALID_ARGUMENT
    wide = UUri(authority_name="near", ue_id=1, ue_version_major=0x100)
    assert (await near.register_listener(wide, Collected())).code == UCode.INVALID_ARGUMENT
    assert (await near.unregister_listener(wide, Collected())).code == UCode.INVALID_ARGUMENT


async def test_an_empty_authority_is_that_of_the_transport(
    near: UpPythonTransport, far: UpPythonTransport
) -> None:
    listener = Collected()
    await far.register_listener(TOPIC, listener)
    local = UUri(ue_id=TOPIC.ue_id, ue_version_major=1, resource_id=TOPIC.resource_id)
    await send(near, UMessageBuilder.publish(local).build())
    assert [each.attributes.source for each in await listener.wait()] == [TOPIC]


async def test_a_sample_with_other_attributes_than_its_key_is_refused(
    locator: str, far: UpPythonTransport
) -> None:
    listener = Collected()
    await far.register_listener(UriFactory.ANY, listener)
    good = publication(1)
    attachment = b"\x01" + good.attributes.SerializeToString()
    other = UMessageBuilder.publish(
        UUri(authority_name="x", ue_id=1, ue_version_major=1, resource_id=0x8001)
    ).build()
    key = "up/near/A001/0/1/8001/{}/{}/{}/{}/{}"
    with zenoh.open(client_config(locator)) as session:
        for wrong in (
            None,
            b"",
            b"\x02" + attachment[1:],
            b"\x01\xff",
            b"\x01" + other.attributes.SerializeToString(),
        ):
            session.put(key, b"wrong", attachment=wrong)
        session.put(key, b"1", attachment=attachment)
        assert await listener.wait() == [good]
    assert far.refused == 5


async def test_without_a_node_nothing_is_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UStatusError) as failed:
        await UpPythonTransport.open(NEAR, client_config(f"tcp/127.0.0.1:{port}"))
    assert failed.value.get_code() == UCode.UNAVAILABLE
    alone = zenoh.Config()
    alone.insert_json5("scouting/multicast/enabled", "false")
    transport = await UpPythonTransport.open(NEAR, alone)
    assert (await transport.send(publication(1))).code == UCode.UNAVAILABLE
    await transport.close()
    await transport.close()
    assert (await transport.send(publication(1))).message == "the transport is closed"
    assert (await transport.register_listener(TOPIC, Collected())).code == UCode.UNAVAILABLE


@pytest.mark.parametrize(
    "source", [UUri(ue_id=1, ue_version_major=1), TOPIC, UriFactory.ANY], ids=["empty", "topic", "any"]
)
async def test_a_source_is_the_address_of_an_entity(source: UUri) -> None:
    with pytest.raises(UStatusError) as failed:
        await UpPythonTransport.open(source, zenoh.Config())
    assert failed.value.get_code() == UCode.INVALID_ARGUMENT
