# SPDX-License-Identifier: Apache-2.0
"""A broker that ends the connection for a message that it does not take, instead of a refusal."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest
from ustreamer_mqtt import connection
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.transport import MqttTransport

from tests.mqtt_rig import read_packets
from tests.waiting import DEADLINE_S, wait_until
from ustreamer.core.base.clock import Clock
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.messages import ALPHA, TOPIC, new_id
from ustreamer.transport_port import EndpointContext
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.ustatus import UStatusError

STEP_NS: Final = 5_000_000_000
NOT_AUTHORIZED: Final = b"\xe0\x01\x87"
SHUTTING_DOWN: Final = b"\xe0\x01\x8b"
BAD, GOOD, LAST = b"bad ", b"good", b"last"


class EndingBroker:
    """Ends the connection at the message `BAD`, after the packet `goodbye`, and acknowledges all others.

    With each connection the clock advances by `STEP_NS`.
    """

    def __init__(self, server: socket.socket, goodbye: bytes) -> None:
        self.received: list[list[bytes]] = []
        """By connection."""
        self.clock = Clock(
            lambda: SYSTEM_CLOCK.monotonic_ns() + len(self.received) * STEP_NS, SYSTEM_CLOCK.wall_ms
        )
        self.may_answer = threading.Event()
        """Set when all messages are sent: the endpoint takes none between two connections."""
        self._server = server
        self._goodbye = goodbye

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._server.accept()
                with link, suppress(OSError):
                    self.received.append([])
                    for head, content in read_packets(link):
                        if not self._answer(link, head >> 4, content):
                            break

    def _answer(self, link: socket.socket, kind: int, content: bytes) -> bool:
        """False: the connection ends."""
        if kind == 1:  # CONNECT
            link.sendall(b"\x20\x03\x00\x00\x00")
        elif kind == 8:  # SUBSCRIBE
            link.sendall(b"\x90\x05" + content[:2] + b"\0\x01\x01")
        elif kind == 3:  # PUBLISH
            self.may_answer.wait(DEADLINE_S)
            payload = content[-len(BAD) :]
            self.received[-1].append(payload)
            if payload == BAD:
                link.sendall(self._goodbye)
                return False
            at = 2 + int.from_bytes(content[:2], "big")
            link.sendall(b"\x40\x02" + content[at : at + 2])
        return True


@contextmanager
def endpoint_at(
    goodbye: bytes, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MqttTransport, EndingBroker]]:
    """An open endpoint that has sent a good message, a bad one, and another good one of another topic."""
    monkeypatch.setattr(connection, "FIRST_RETRY_MS", 10)
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = EndingBroker(server, goodbye)
        thread = threading.Thread(target=broker.serve)
        thread.start()
        config = MqttEndpoint(
            transport="mqtt",
            broker=f"mqtt://127.0.0.1:{server.getsockname()[1]}",
            authorities=("*",),
            connect_timeout_ms=60_000,  # by the clock that advances
        )
        transport = MqttTransport(config, EndpointContext("net", ALPHA, broker.clock))
        try:
            transport.open()
            for resource, payload in ((0x8002, GOOD), (0x8001, BAD), (0x8002, LAST)):
                transport.send(publish(new_id(), TOPIC.with_resource(resource), payload))
            broker.may_answer.set()
            yield transport, broker
        finally:
            broker.may_answer.set()
            transport.close()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.mark.parametrize("goodbye", [b"", NOT_AUTHORIZED], ids=["without a reason", "not authorized"])
def test_a_message_that_ends_each_connection_is_refused_and_the_others_arrive(
    goodbye: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with endpoint_at(goodbye, monkeypatch) as (transport, broker):
        wait_until(lambda: transport.statistics()["confirmed"] == 2, "the good messages")
        with pytest.raises(UStatusError, match="ends each connection with a message of topic"):
            transport.send(publish(new_id(), TOPIC, BAD))
        assert transport.statistics()["broker_refusals"] == 1
    assert broker.received[0] == [GOOD, BAD]
    assert broker.received[1:] == [[BAD], [BAD], [BAD], [LAST]]
    reasons = [each.__dict__["reason"] for each in caplog.records if each.msg == "mqtt.message_refused"]
    assert reasons == [f"the broker ends each connection with a message of topic '{ALPHA}/A/1/1/8001'"]


def test_a_broker_that_shuts_down_again_and_again_is_no_reason_to_refuse_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with endpoint_at(SHUTTING_DOWN, monkeypatch) as (transport, broker):
        wait_until(lambda: len(broker.received) > 8, "the connections")
        counters = transport.statistics()
    assert (counters["broker_refusals"], counters["confirmed"]) == (0, 1)
