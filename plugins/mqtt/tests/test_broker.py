# SPDX-License-Identifier: Apache-2.0
"""The endpoint at a real broker, next to a client that is not ours: mapping on the wire, refusals, outages, bounds."""

import logging
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.exception import MQTTException
from ustreamer_mqtt import connection
from ustreamer_mqtt.client import TolerantClient
from ustreamer_mqtt.config import MqttEndpoint, MqttTls
from ustreamer_mqtt.receiver import receipt_id
from ustreamer_mqtt.transport import MqttTransport

from tests.mqtt_rig import Mosquitto, needs_mosquitto, plain_client, read_packets
from tests.waiting import DEADLINE_S, wait_until
from ustreamer.core.base.clock import Clock
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.mailbox import Mailbox
from ustreamer.testing.messages import ALPHA, BETA, REMOTE_CLIENT, TOPIC, four_messages, new_id
from ustreamer.transport_port import EndpointContext
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY

pytestmark = needs_mosquitto
_numbers = count()
_ID_BYTES = 17
WIRE_TOPIC = f"{ALPHA}/A/1/1/8001"


def client_id() -> str:
    return f"test-{next(_numbers)}"


def endpoint(url: str, authority: str = BETA, clock: Clock = SYSTEM_CLOCK, **keys: Any) -> MqttTransport:
    """Not yet open."""
    section = {"authorities": ("*",), "client_id": client_id(), **keys}
    config = MqttEndpoint(transport="mqtt", broker=url, **section)
    return MqttTransport(config, EndpointContext("net", authority, clock))


@contextmanager
def opened(url: str, authority: str = BETA, **keys: Any) -> Iterator[tuple[MqttTransport, Mailbox]]:
    """An open endpoint, and what it receives."""
    transport, inbox = endpoint(url, authority, **keys), Mailbox()
    transport.register_listener(ANY, None, inbox)
    transport.register_listener(ANY, ANY, inbox)
    try:
        transport.open()
        yield transport, inbox
    finally:
        transport.close()


def user_properties(id: UUID, kind: str = "pub.v1", source: str = str(TOPIC)) -> list[tuple[str, str]]:
    return [("uP", "1"), ("1", str(id)), ("2", kind), ("3", source)]


def publications(number: int) -> list[UMessage]:
    return [publish(new_id(), TOPIC, b"%d" % each) for each in range(number)]


# --- on the wire ------------------------------------------------------------------------------------------------------


def test_another_client_reads_what_the_endpoint_sends(broker: Mosquitto) -> None:
    sent = four_messages()[3]
    with (
        plain_client(broker.port, client_id(), [f"{ALPHA}/B/0/2/7/{BETA}/E/0/1/0"]) as other,
        opened(broker.url, ALPHA) as (transport, _),
    ):
        transport.send(sent)
        (received,) = other.wait(1)
        wait_until(lambda: transport.statistics()["confirmed"] == 1, "the acknowledgement")
    assert received.payload == b"answer"
    assert received.qos == 1
    properties: Any = received.properties
    assert dict(properties.UserProperty) == {
        "uP": "1",
        "1": str(sent.id),
        "2": "res.v1",
        "3": f"up://{ALPHA}/B/2/7",
        "4": f"up://{BETA}/E/1/0",
        "5": "CS4",
        "8": "5",
    }
    assert properties.MessageExpiryInterval == 5
    assert properties.ContentType == "6"
    assert properties.CorrelationData == bytes.fromhex(str(sent.attributes.reqid).replace("-", ""))


def test_the_endpoint_reads_what_another_client_sends(broker: Mosquitto) -> None:
    id = new_id()
    with opened(broker.url) as (_, inbox), plain_client(broker.port, client_id()) as other:
        for qos in (0, 1, 2):
            other.publish(WIRE_TOPIC, user_properties(id), b"x", qos=qos, content_type="7", expiry_s=3)
        received = inbox.wait(3)
    assert [(each.id, each.payload, each.attributes.ttl) for each in received] == [(id, b"x", 3000)] * 3
    assert {each.attributes.payload_format.name for each in received} == {"TEXT"}


def test_a_packet_of_another_program_is_refused_counted_and_acknowledged(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(broker.url) as (transport, inbox), plain_client(broker.port, client_id()) as other:
        other.publish("a/b/c/d/e", [])
        other.publish(WIRE_TOPIC, user_properties(new_id(), source=f"up://{BETA}/A/1/8001"))
        other.publish(WIRE_TOPIC, user_properties(new_id())[:3])
        other.publish(WIRE_TOPIC, user_properties(new_id()), b"good")
        assert [each.payload for each in inbox.wait(1)] == [b"good"]
        counters = transport.statistics()
    assert (counters["refused_address"], counters["refused_properties"], counters["received"]) == (1, 2, 1)
    reasons = {each.__dict__["reason"] for each in caplog.records if each.msg == "mqtt.packet_refused"}
    assert reasons == {"address", "properties"}


def test_a_packet_that_a_defect_keeps_from_being_read_is_refused_and_ends_no_thread(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(packet: object) -> UMessage:
        raise KeyError("a defect")

    with opened(broker.url) as (transport, inbox), plain_client(broker.port, client_id()) as other:
        with monkeypatch.context() as broken:
            broken.setattr(transport._receiver._decoder, "decode", fail)
            other.publish(WIRE_TOPIC, user_properties(new_id()), b"lost")
            wait_until(lambda: transport.statistics()["refused_unreadable"] == 1)
        other.publish(WIRE_TOPIC, user_properties(new_id()), b"next")
        assert inbox.wait(1)[0].payload == b"next"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_health_checks_see_both_threads_and_one_that_has_ended(
    broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    def progress() -> list[tuple[str, bool]]:
        return [(each.name, each.waiting) for each in transport.receiving_threads()]

    def fail(_: object) -> None:
        raise KeyError("a defect")

    both = [("mqtt net", True), ("mqtt net receiver", True)]
    with opened(broker.url) as (transport, _), plain_client(broker.port, client_id()) as other:
        wait_until(lambda: progress() == both)
        monkeypatch.setattr(transport._receiver, "_take", fail)
        other.publish(WIRE_TOPIC, user_properties(new_id()), b"x")
        wait_until(lambda: progress() == [("mqtt net", True), ("mqtt net receiver", False)])
        monkeypatch.setattr(transport._connection, "_turn", lambda *_: fail(None))
        transport._connection.wake()
        wait_until(lambda: progress() == [("mqtt net", False), ("mqtt net receiver", False)])
    assert not transport.receiving_threads()


def test_an_unsubscription_is_sent_at_once(broker: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_IDLE_MS", 10 * DEADLINE_S * 1000)
    with opened(broker.url) as (transport, _):
        turns = transport._connection._turns
        wait_until(lambda: transport._connection._turns == turns)
        transport._connection.unsubscribe()
        wait_until(lambda: transport._connection._turns > turns)


def tolerant_client(reports: list[Any]) -> TolerantClient:
    return TolerantClient(
        reports.append,
        lambda mid, reason: reports.append((mid, reason)),
        CallbackAPIVersion.VERSION2,
        protocol=MQTTProtocolVersion.MQTTv5,
    )


@pytest.mark.parametrize(
    ("packet", "reported"),
    [
        (b"\x00\x07\x95", (7, 0x95)),  # a reason that MQTT has for other packets
        (b"\x00\x07\x00\x06\x1f\x00\x03\xef\xbb\xbf", (7, 0)),  # U+FEFF in the reason string
        (b"\x00\x07\x00\xff", (7, 0)),  # properties without an end
    ],
)
def test_a_puback_that_the_library_cannot_read_counts(packet: bytes, reported: tuple[int, int]) -> None:
    reports: list[Any] = []
    client = tolerant_client(reports)
    client._in_packet["command"] = 0x40
    client._in_packet["packet"] = bytearray(packet)
    client._handle_pubackcomp("PUBACK")
    assert reports == [reported]


def test_a_puback_without_a_number_ends_the_connection() -> None:
    reports: list[Any] = []
    client = tolerant_client(reports)
    client._in_packet["command"] = 0x40
    client._in_packet["packet"] = bytearray(b"\x00")
    with pytest.raises(MQTTException):
        client._handle_pubackcomp("PUBACK")
    assert reports == []


def test_a_packet_without_a_number_ends_the_connection() -> None:
    reasons: list[str] = []
    client = tolerant_client(reasons)
    client._in_packet["command"] = 0x32  # a PUBLISH with QoS 1
    client._in_packet["packet"] = bytearray(b"\x00\x09a")  # the topic has 9 bytes
    with pytest.raises(MQTTException, match="without a number"):
        client._handle_publish()
    assert reasons == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_packet_that_the_library_cannot_read_is_refused_and_ends_no_connection(
    broker: Mosquitto, qos: int
) -> None:
    # The broker accepts U+FEFF in a text, as MQTT allows it; the library refuses it.
    with opened(broker.url) as (transport, inbox), plain_client(broker.port, client_id()) as other:
        for user in ([*user_properties(new_id()), ("x", "\ufeff")], user_properties(new_id())):
            other.publish(WIRE_TOPIC, user, b"good", qos=qos)
        assert len(inbox.wait(1)) == 1
        wait_until(lambda: transport.statistics()["refused_unreadable"] == 1, "the refusal")
        counters = transport.statistics()
    assert (counters["received"], counters["connects"]) == (1, 1)


def test_only_messages_of_the_authorities_behind_the_endpoint_are_subscribed(broker: Mosquitto) -> None:
    keys: dict[str, Any] = {"authorities": (ALPHA,), "receive_for": (BETA,)}
    with opened(broker.url, **keys) as (transport, inbox), plain_client(broker.port, client_id()) as other:
        foreign = f"gamma/{WIRE_TOPIC.partition('/')[2]}"
        other.publish(foreign, user_properties(new_id(), source="up://gamma/1000A/1/8001"))
        for sink in ("gamma", BETA):
            pairs = [*user_properties(new_id(), "not.v1"), ("4", f"up://{sink}/E/1/0")]
            other.publish(f"{WIRE_TOPIC}/{sink}/E/0/1/0", pairs)
        (received,) = inbox.wait(1)
        assert received.attributes.sink == REMOTE_CLIENT
        assert transport.statistics()["packets_waiting"] == 0
    assert len(inbox.messages) == 1


def test_between_devices_all_messages_of_two_authorities_share_a_topic(broker: Mosquitto) -> None:
    def side(authority: str, other: str) -> Any:
        return opened(
            broker.url, authority, authorities=(other,), receive_for=(authority,), topics="off_vehicle"
        )

    with (
        side(BETA, ALPHA) as (_, inbox),
        side(ALPHA, BETA) as (transport, own),
        plain_client(broker.port, client_id(), ["+/+"]) as other,
    ):
        sent = four_messages()
        for each in sent:
            transport.send(each)
        assert inbox.wait(4) == list(sent)
        assert {each.topic for each in other.wait(4)} == {f"{ALPHA}/{BETA}"}
    assert own.messages == []


@pytest.mark.parametrize("code", [0x01, 0x1F, 0x7F, 0x85, 0xFDD0, 0xFFFE, 0x1FFFF])
def test_a_text_that_a_broker_takes_as_malformed_is_refused_and_ends_no_connection(
    broker: Mosquitto, code: int
) -> None:
    """mosquitto ends the connection with such a packet. After each reconnection it would be the first one."""
    with opened(broker.url, ALPHA) as (transport, _):
        good = publish(new_id(), TOPIC, b"good")
        attributes = msgspec.structs.replace(good.attributes, token=f"a{chr(code)}b")
        with pytest.raises(UStatusError, match=rf"token has the character U\+{code:04X}") as refused:
            transport.send(UMessage(new_id(), attributes))
        transport.send(good)
        wait_until(lambda: transport.statistics()["confirmed"] == 1, "the next message")
        assert transport.statistics()["connection_losses"] == 0
    assert refused.value.code is UCode.INVALID_ARGUMENT


# --- connecting -------------------------------------------------------------------------------------------------------


def test_a_wrong_password_ends_the_start_with_the_reason_and_without_the_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "gateway", "right"], check=True)
    passwords.chmod(0o644)
    with Mosquitto(tmp_path, ["allow_anonymous false", f"password_file {passwords}"]) as guarded:
        with opened(guarded.url, username="gateway", password="right") as (transport, _):
            assert transport.statistics()["links_now"] == 1
        wrong = endpoint(guarded.url, username="gateway", password="sesame")
        with pytest.raises(UStatusError, match="'net': broker mqtt://127.0.0.1:.* refuses") as refused:
            wrong.open()
    assert refused.value.code in {UCode.PERMISSION_DENIED, UCode.UNAUTHENTICATED}
    assert "sesame" not in str(refused.value) + "".join(map(str, (each.__dict__ for each in caplog.records)))
    assert threading.active_count() < 50


@pytest.mark.parametrize(
    ("answer", "text", "code"),
    [
        (
            b"\x20\x03\x00\x87\x00",
            r"refuses the connection: Not authorized \(0x87\)",
            UCode.PERMISSION_DENIED,
        ),
        (
            b"\x20\x03\x00\x00\x00\x90\x05\x00\x01\x00\x01\x87",
            r"refuses a subscription: Not",
            UCode.PERMISSION_DENIED,
        ),
        (b"\x20\x05\x00\x00\x02\x24\x00", "does not support QoS 1", UCode.UNIMPLEMENTED),
    ],
)
def test_a_refusal_at_the_start_ends_the_start(answer: bytes, text: str, code: UCode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UStatusError, match=text) as refused:
            endpoint(f"mqtt://127.0.0.1:{server.getsockname()[1]}").open()
        thread.join(10)
    assert refused.value.code is code


def test_a_broker_may_come_after_the_start(tmp_path: Path) -> None:
    late = Mosquitto(tmp_path)
    transport, reports = endpoint(late.url, ALPHA), list[bool]()
    transport.watch_link(reports.append)
    transport.open()
    try:
        assert reports == [False]
        with pytest.raises(UStatusError, match="not connected to the broker") as refused:
            transport.send(publish(new_id(), TOPIC))
        assert refused.value.code is UCode.UNAVAILABLE
        with late:
            wait_until(lambda: reports == [False, True], "the link")
            transport.send(publish(new_id(), TOPIC))
            wait_until(lambda: transport.statistics()["confirmed"] == 1, "the acknowledgement")
        wait_until(lambda: reports == [False, True, False], "the end of the link")
    finally:
        transport.close()


def test_the_broker_of_a_certificate_is_verified(tmp_path: Path) -> None:
    make_certificates(tmp_path, "broker", "other")
    lines = [f"cafile {tmp_path}/ca.pem", f"certfile {tmp_path}/broker.pem", f"keyfile {tmp_path}/broker.key"]
    with Mosquitto(tmp_path, lines) as secure:
        url = secure.url.replace("mqtt:", "mqtts:").replace("127.0.0.1", "localhost")
        with opened(url, BETA, tls=MqttTls(ca=tmp_path / "ca.pem")) as (transport, inbox):
            assert transport.statistics()["links_now"] == 1
            assert transport.problems() == ()
            with opened(url, ALPHA, tls=MqttTls(ca=tmp_path / "ca.pem")) as (sender, _):
                sent = [publish(new_id(), TOPIC, bytes(size)) for size in (0, 100, 200_000)]
                for each in sent:
                    sender.send(each)
                assert inbox.wait(3) == sent
        with opened(url, BETA) as (transport, _):  # the authorities of the machine do not know this one
            assert transport.statistics()["links_now"] == 0
        missing = endpoint(url, tls=MqttTls(ca=tmp_path / "missing.pem"))
        assert "missing.pem" in missing.problems()[0]
        with pytest.raises(UStatusError, match="INVALID_ARGUMENT: tls: .*missing.pem"):
            missing.open()


def make_certificates(directory: Path, *names: str) -> None:
    """An authority, and a certificate for localhost by it."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl("req", "-x509", *new, "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.pem")
    for name in names:
        openssl(
            "req", "-x509", *new, "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost",
            "-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", f"{name}.key", "-out", f"{name}.pem",
        )  # fmt: skip


CONNACK = b"\x20\x03\x00\x00\x00"
SUBACK = b"\x90\x05\x00\x01\x00\x01\x01"
MISBEHAVIOUR = {
    "ends the connection": (b"", "the connection ended"),
    "sends no MQTT": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the connection ended"),
    "sends an endless length": (b"\x20\xff\xff\xff\xff\xff", "the connection ended"),
    "is busy": (b"\x20\x03\x00\x89\x00", r"refuses the connection: Server busy \(0x89\)"),
    "gives the session to another client": (
        CONNACK + SUBACK + b"\xe0\x01\x8e",
        r"the broker ended the connection: Session taken over \(0x8E\)",
    ),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
def test_the_end_of_a_connection_has_its_reason_in_the_log(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer, reason = MISBEHAVIOUR[name]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        transport = endpoint(f"mqtt://127.0.0.1:{server.getsockname()[1]}")
        try:
            transport.open()
            wait_until(lambda: [each for each in caplog.records if "reason" in each.__dict__], "the line")
        finally:
            server.close()
            transport.close()
            thread.join(10)
    assert re.search(reason, caplog.records[-1].__dict__["reason"]), caplog.records[-1].__dict__["reason"]


def test_a_broker_that_does_not_answer_is_given_up_in_time(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        transport = endpoint(f"mqtt://127.0.0.1:{server.getsockname()[1]}", connect_timeout_ms=200)
        transport.open()
        transport.close()
    assert "no answer within 200 ms" in caplog.records[0].__dict__["reason"]


# --- outages ----------------------------------------------------------------------------------------------------------


def test_what_a_killed_broker_did_not_acknowledge_arrives_after_its_restart(tmp_path: Path) -> None:
    """0 lost. A message is repeated only if the broker had it and its acknowledgement was lost: here, none."""
    with Mosquitto(tmp_path) as own, plain_client(own.port, client_id(), ["#"]) as other:
        own.save()  # the session of the other client
        with opened(own.url, ALPHA) as (transport, _):
            first = publications(50)
            for each in first:
                transport.send(each)
            assert len(other.wait(50)) == 50
            wait_until(lambda: transport.statistics()["unconfirmed_now"] == 0, "the acknowledgements")
            own.send_signal(signal.SIGSTOP)
            second = publications(100)
            for each in second:
                transport.send(each)
            assert transport.statistics()["unconfirmed_now"] == 100
            assert all(transport.awaits_receipt(each.id) for each in second)
            own.kill()
            wait_until(lambda: not transport.statistics()["links_now"], "the loss")
            own.start()
            wait_until(lambda: transport.statistics()["unconfirmed_now"] == 0, "the acknowledgements")
            counters = transport.statistics()
        ids = [dict(each.properties.UserProperty)["1"] for each in other.wait(150)]  # type: ignore[union-attr]
    assert ids == [str(each.id) for each in (*first, *second)], "in order, each once"
    assert (counters["sent"], counters["confirmed"], counters["connection_losses"]) == (150, 150, 1)


def test_what_expires_while_the_broker_is_away_is_not_sent_and_the_rest_has_less_time(
    tmp_path: Path,
) -> None:
    skew_ns = 0
    clock = Clock(
        lambda: SYSTEM_CLOCK.monotonic_ns() + skew_ns, lambda: SYSTEM_CLOCK.wall_ms() + skew_ns // 1_000_000
    )
    with (
        Mosquitto(tmp_path) as own,
        plain_client(own.port, client_id(), ["#"]) as other,
        opened(own.url, ALPHA, clock=clock, session_expiry_s=60) as (transport, _),
    ):
        own.save()
        own.send_signal(signal.SIGSTOP)
        sent = [
            publish(new_id(), TOPIC, b"%d" % each, ttl=(5_000, 60_000, None)[each % 3]) for each in range(90)
        ]
        for each in sent:
            transport.send(each)
        own.kill()
        wait_until(lambda: not transport.statistics()["links_now"], "the loss")
        skew_ns = 20_000_000_000
        own.start()
        wait_until(lambda: transport.statistics()["unconfirmed_now"] == 0, "the acknowledgements")
        counters = transport.statistics()
        alive = [each for each in sent if each.attributes.ttl != 5_000]
        received = other.wait(60)
        assert [bytes(each.payload) for each in received] == [each.payload for each in alive]
        for packet in received:
            properties: Any = packet.properties
            if int(packet.payload) % 3 == 1:
                assert dict(properties.UserProperty)["6"] == "60000"
                assert 30 <= properties.MessageExpiryInterval <= 40
            else:
                assert not hasattr(properties, "MessageExpiryInterval")
    assert (counters["sent"], counters["confirmed"], counters["expired_unconfirmed"]) == (90, 60, 30)


def test_a_resumed_session_gets_its_packet_ids_again_without_those_that_have_expired() -> None:
    """MQTT-4.4.0-1: repeated PUBLISH packets have their packet ids, and DUP."""
    skew_ns = 0
    clock = Clock(lambda: SYSTEM_CLOCK.monotonic_ns() + skew_ns, SYSTEM_CLOCK.wall_ms)
    sessions: list[list[tuple[int, int, bytes]]] = []
    sent = [publish(new_id(), TOPIC, b"%d" % each, ttl=(5_000, 60_000, None)[each]) for each in range(3)]
    expected = (3, 2)

    def serve(server: socket.socket) -> None:
        nonlocal skew_ns
        for number, count_of_packets in enumerate(expected):
            connection, _ = server.accept()
            published: list[tuple[int, int, bytes]] = []
            with connection:
                for head, content in read_packets(connection):
                    if head >> 4 == 1:  # CONNECT
                        connection.sendall(b"\x20\x03" + bytes([number, 0, 0]))
                    elif head >> 4 == 8:  # SUBSCRIBE
                        connection.sendall(b"\x90\x05" + content[:2] + b"\0\x01\x01")
                    elif head >> 4 == 3:
                        at = 2 + int.from_bytes(content[:2], "big")
                        published.append((head, int.from_bytes(content[at : at + 2], "big"), content))
                        if len(published) == count_of_packets:
                            break
            skew_ns += 20_000_000_000
            sessions.append(published)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        transport = endpoint(
            f"mqtt://127.0.0.1:{server.getsockname()[1]}", ALPHA, clock=clock, session_expiry_s=60
        )
        try:
            transport.open()
            for each in sent:
                transport.send(each)
            wait_until(lambda: len(sessions) == 2, "both connections")
        finally:
            transport.close()
            thread.join(10)
    first, second = sessions
    assert [head for head, _, _ in first] == [0x32] * 3
    assert [(head, mid, content[-1:]) for head, mid, content in second] == [
        (0x3A, mid, content[-1:]) for _, mid, content in first[1:]
    ]
    assert b"\x02" + (40).to_bytes(4, "big") in second[0][2]
    assert transport.statistics()["expired_unconfirmed"] == 1


def test_what_is_unconfirmed_at_a_stop_is_returned_in_order(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as own, opened(own.url, ALPHA) as (transport, _):
        own.send_signal(signal.SIGSTOP)
        sent = publications(30)
        for each in sent:
            transport.send(each)
        own.kill()
        assert list(transport.finish().messages) == sent


class SafeAfter:
    """A ReceivedStore that knows when messages are safe, with the ids of an earlier process."""

    def __init__(self, ids: Sequence[bytes] = ()) -> None:
        self.safe_ns = 0
        self.ids = list(ids)
        self.is_closed = False

    def load(self) -> Sequence[bytes]:
        return self.ids

    def restored(self) -> Sequence[UUID]:
        return ()

    def safe_before_ns(self) -> int:
        return self.safe_ns

    def add(self, ids: bytes) -> None:
        self.ids += [ids[at : at + _ID_BYTES] for at in range(0, len(ids), _ID_BYTES)]

    def close(self) -> None:
        self.is_closed = True


def test_a_durable_endpoint_drops_copies_of_what_an_earlier_process_took(broker: Mosquitto) -> None:
    taken, new = publications(2)
    store = SafeAfter([receipt_id(taken.id)])
    store.safe_ns = 1 << 62
    transport, inbox = endpoint(broker.url), Mailbox()
    transport.keep_received(store)
    transport.register_listener(ANY, None, inbox)
    transport.open()
    try:
        with opened(broker.url, ALPHA) as (sender, _):
            for each in (taken, new, new):
                sender.send(each)
            wait_until(lambda: transport.statistics()["duplicates"] == 2, "both copies")
        assert inbox.messages == [new]
    finally:
        transport.close()


def test_a_durable_endpoint_acknowledges_what_is_safe_only(broker: Mosquitto) -> None:
    """A streamer that is killed has acknowledged nothing that it could lose."""
    keys: dict[str, Any] = {"client_id": client_id(), "session_expiry_s": 60}
    first, unsafe = publications(2), publications(3)
    store, inbox = SafeAfter(), Mailbox()
    with opened(broker.url, ALPHA) as (sender, _):
        for number, sent in enumerate((first, unsafe)):
            transport = endpoint(broker.url, **keys)
            transport.keep_received(store)
            transport.register_listener(ANY, None, inbox)
            transport.open()
            for each in sent:
                sender.send(each)
            store.safe_ns = 0 if number else 1 << 62
            inbox.wait(2 + 3 * number)
            if not number:
                wait_until(lambda: len(store.ids) == 2, "the acknowledgements")
            transport.close()
        assert inbox.messages == [*first, *unsafe]
        assert store.is_closed
        again = SafeAfter(store.ids)
        again.safe_ns = 1 << 62
        transport = endpoint(broker.url, **keys)
        transport.keep_received(again)
        repeated = Mailbox()
        transport.register_listener(ANY, None, repeated)
        transport.open()
        try:
            assert repeated.wait(3) == unsafe
            last = publications(1)
            sender.send(last[0])
            assert repeated.wait(4) == [*unsafe, *last]
            assert transport.statistics()["redelivered"] == 3
        finally:
            transport.close()


def test_a_session_keeps_messages_for_an_endpoint_that_is_away(broker: Mosquitto) -> None:
    keys: dict[str, Any] = {"client_id": client_id(), "session_expiry_s": 60}
    with opened(broker.url, **keys):
        pass
    with opened(broker.url, ALPHA) as (sender, _):
        sent = publications(5)
        for each in sent:
            sender.send(each)
        wait_until(lambda: sender.statistics()["unconfirmed_now"] == 0, "the acknowledgements")
        with opened(broker.url, **keys) as (_, inbox):
            assert inbox.wait(5) == sent
        with opened(broker.url, **keys, clean_start=True) as (_, inbox):
            sender.send(last := publications(1)[0])
            assert inbox.wait(1) == [last]


def test_streamers_of_one_group_share_the_messages(broker: Mosquitto) -> None:
    keys: dict[str, Any] = {"authorities": (ALPHA,), "shared": "gateways"}
    with (
        opened(broker.url, **keys) as (_, left),
        opened(broker.url, **keys) as (_, right),
        opened(broker.url, ALPHA) as (sender, _),
    ):
        sent = publications(100)
        for each in sent:
            sender.send(each)
        wait_until(lambda: len(left.messages) + len(right.messages) >= 100, "all messages")
    got = [each.id for each in (*left.messages, *right.messages)]
    assert sorted(got) == sorted(each.id for each in sent), "each message at one of the two"
    assert left.messages
    assert right.messages


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_a_listener_that_is_slow_slows_the_broker_down_and_loses_nothing(broker: Mosquitto, qos: int) -> None:
    entered, go = threading.Event(), threading.Event()
    taken: list[bytes] = []

    def slow(message: UMessage) -> None:
        entered.set()
        go.wait(30)
        taken.append(message.payload)

    transport = endpoint(broker.url, receive_maximum=8)
    transport.register_listener(ANY, None, slow)
    transport.open()
    try:
        with plain_client(broker.port, client_id()) as other:
            for number in range(300):
                other.publish(WIRE_TOPIC, user_properties(new_id()), b"%d" % number, qos=qos)
            assert entered.wait(30)
            waiting = transport.statistics()["packets_waiting"]
            go.set()
            wait_until(lambda: len(taken) == 300, "all messages")
    finally:
        go.set()
        transport.close()
    assert waiting <= 8
    assert taken == [b"%d" % number for number in range(300)]


def test_a_message_above_the_limit_of_the_broker_is_refused_and_ends_no_connection(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, ["max_packet_size 5000"]) as own, opened(own.url, ALPHA) as (transport, _):
        with pytest.raises(UStatusError, match="RESOURCE_EXHAUSTED: .* the broker takes 5000"):
            transport.send(publish(new_id(), TOPIC, bytes(5_000)))
        size = 5_000
        while size:
            try:
                transport.send(publish(new_id(), TOPIC, bytes(size)))
                break
            except UStatusError:
                size -= 1
        wait_until(lambda: transport.statistics()["confirmed"] == 1, "the largest message")
        assert transport.statistics()["connection_losses"] == 0
        assert size > 4_800


def test_a_payload_above_the_limit_of_the_broker_is_refused_and_blocks_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It names no limit before. The reason in its PUBACK is not one that the library knows."""
    with Mosquitto(tmp_path, ["message_size_limit 1000"]) as own, opened(own.url, ALPHA) as (transport, _):
        for size in (1_001, 1_000):
            transport.send(publish(new_id(), TOPIC, bytes(size)))
        wait_until(lambda: transport.statistics()["confirmed"] == 1, "the next message")
        counters = transport.statistics()
    assert (counters["broker_refusals"], counters["connection_losses"], counters["connects"]) == (1, 0, 1)
    reasons = [each.__dict__["reason"] for each in caplog.records if each.msg == "mqtt.message_refused"]
    assert reasons == ["RESOURCE_EXHAUSTED (0x95)"]


def test_the_broker_sends_no_packet_above_the_limit(broker: Mosquitto) -> None:
    with (
        opened(broker.url, max_packet_bytes=2_000) as (_, inbox),
        plain_client(broker.port, client_id()) as other,
    ):
        other.publish(WIRE_TOPIC, user_properties(new_id()), bytes(5_000))
        other.publish(WIRE_TOPIC, user_properties(new_id()), b"small")
        assert [each.payload for each in inbox.wait(1)] == [b"small"]
