# SPDX-License-Identifier: Apache-2.0
"""A streamer process between a broker, a Zenoh network and an ECU; the uEntity at the broker is not ours."""

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from paho.mqtt.client import MQTTMessage

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import (
    ECHO,
    SUBSCRIPTION_CHANGE,
    USUBSCRIPTION,
    SomeipNode,
    ZenohEntity,
    ecu_response,
)
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.streamer import StreamerProcess, run_command, statistics
from tests.e2e.rigs.wire import Uri
from tests.mqtt_rig import Mosquitto, PlainClient, needs_mosquitto
from tests.waiting import wait_until

pytestmark = needs_mosquitto
SPEED: Final = 0x1234
CLIMATE: Final = 0x3001
KINDS: Final = {
    wire.PUBLISH: "pub.v1",
    wire.REQUEST: "req.v1",
    wire.RESPONSE: "res.v1",
    wire.NOTIFICATION: "not.v1",
}
_numbers = count(0x20A0)

_CONFIG: Final = """\
authority = "{authority}"
state_dir = "{authority}"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
{backbone}

[endpoints.cloud]
transport = "mqtt"
broker = "{broker}"
authorities = ["cloud"]
client_id = "gateway-{authority}"
{cloud}

[plugins.mqtt]
[plugins.usubscription]
[plugins.throttle]
"""
_ECU: Final = """
[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {someip}
sd = false

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
remote = "127.0.0.1:{ecu}"

[[endpoints.chassis.services]]
service = 0x3001
major = 1
methods = [0x0001]
remote = "127.0.0.1:{ecu}"
"""

_EARLIER_VERSION: Final = """\
import re
from ustreamer_mqtt import properties
properties._FORBIDDEN = re.compile("(?!)")
"""
"""It sends texts that MQTT forbids."""


class MqttEntity:
    """One uEntity at the broker, by a plain client. The mapping is written here by hand, from the specification."""

    def __init__(self, port: int) -> None:
        number = next(_numbers)
        self.address = Uri("cloud", number, 1)
        self.client = PlainClient(port, f"entity-{number}", ["#"])

    def send(
        self, kind: int, source: Uri, sink: Uri | None = None, payload: bytes = b"", **others: Any
    ) -> str:
        """Send a message and return its id."""
        id = id_text(wire.new_id())
        user = [("uP", "1"), ("1", id), ("2", KINDS[kind]), ("3", f"up:{source}")]
        user += [] if sink is None else [("4", f"up:{sink}")]
        user += [("5", "CS4")] if kind in {wire.REQUEST, wire.RESPONSE} else []
        topic = source.chunks if sink is None else f"{source.chunks}/{sink.chunks}"
        self.client.publish(topic, user, payload, **others)
        return id

    def received(self, topic: Uri, sink: Uri | None = None) -> list[MQTTMessage]:
        name = topic.chunks if sink is None else f"{topic.chunks}/{sink.chunks}"
        return [each for each in self.client.received if each.topic == name]

    def wait(self, topic: Uri, sink: Uri | None = None, number: int = 1) -> list[MQTTMessage]:
        wait_until(lambda: len(self.received(topic, sink)) >= number, f"{number} messages of {topic}")
        return self.received(topic, sink)

    def call(self, method: Uri, payload: bytes = b"") -> MQTTMessage:
        id = self.send(wire.REQUEST, self.address, method, payload, content_type="2", expiry_s=10)
        reqid = bytes.fromhex(id.replace("-", ""))

        def responses() -> list[MQTTMessage]:
            found = self.received(method, self.address)
            return [each for each in found if getattr(each.properties, "CorrelationData", None) == reqid]

        return wait_until(responses, f"the response of {method}")[0]

    def subscribe(self, topic: Uri, max_frequency: float | None = None) -> None:
        """Subscribe, and wait for the notification, so that nothing is pending."""
        service = USUBSCRIPTION
        request = wire.subscription_request(topic, max_frequency=max_frequency)
        response = self.call(service.at(wire.SUBSCRIBE), request)
        assert "8" not in dict(response.properties.UserProperty), response.payload  # type: ignore[union-attr]
        assert wire.SubscriptionResponse.decode(bytes(response.payload)) == (wire.SUBSCRIBED, topic)
        self.wait(service.at(SUBSCRIPTION_CHANGE), self.address)


def id_text(id: wire.Id) -> str:
    digits = f"{id.msb:016x}{id.lsb:016x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def payloads(packets: Sequence[MQTTMessage]) -> list[bytes]:
    return [bytes(each.payload) for each in packets]


class Gateway(NamedTuple):
    process: StreamerProcess
    broker: Mosquitto
    ecu: SomeipNode
    backbone: int
    someip: int
    state: Path

    def endpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = statistics(self.state)["endpoints"]["cloud"]
        return found


@contextmanager
def running_gateway(directory: Path, cloud: str = "", broker_lines: Sequence[str] = ()) -> Iterator[Gateway]:
    """At the end the streamer must exit with 0 and a balanced ledger."""
    [backbone], (someip, ecu) = tcp_ports(1), udp_ports(2)
    with (
        Mosquitto(directory, broker_lines) as broker,
        SomeipNode(ecu, responder=ecu_response) as node,
        StreamerProcess(
            write_config(
                directory,
                broker.url,
                f'listen = ["tcp/127.0.0.1:{backbone}"]',
                cloud,
                _ECU.format(someip=someip, ecu=ecu),
            )
        ) as process,
    ):
        yield Gateway(process, broker, node, backbone, someip, directory / "hpc.vin1")


def write_config(
    directory: Path, broker: str, backbone: str, cloud: str = "", more: str = "", authority: str = "hpc.vin1"
) -> Path:
    file = directory / f"{authority}.toml"
    file.write_text(
        _CONFIG.format(authority=authority, broker=broker, backbone=backbone, cloud=cloud) + more,
        encoding="utf-8",
    )
    return file


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def cloud(gateway: Gateway) -> Iterator[MqttEntity]:
    entity = MqttEntity(gateway.broker.port)
    yield entity
    entity.client.close()


@pytest.fixture
def app(gateway: Gateway) -> Iterator[ZenohEntity]:
    with ZenohEntity(gateway.backbone, "hpc.vin1") as entity:
        yield entity


def test_publications_of_a_zenoh_application_reach_the_subscriber_at_the_broker(
    cloud: MqttEntity, app: ZenohEntity
) -> None:
    topic = app.address.at(0x8001)
    cloud.subscribe(topic)
    sent = [b"%d" % number for number in range(100)]
    for each in sent:
        app.publish(topic, each)
    assert payloads(cloud.wait(topic, number=100)) == sent


def test_publications_at_the_broker_reach_a_zenoh_subscriber(cloud: MqttEntity, app: ZenohEntity) -> None:
    topic = cloud.address.at(0x8001)
    app.subscribe(topic)
    for number in range(50):
        cloud.send(wire.PUBLISH, topic, payload=b"%d" % number)
    events = app.wait_events(topic, 50)
    assert [each.payload for each in events] == [b"%d" % number for number in range(50)]


def test_a_client_that_only_listens_gets_each_change_of_a_subscription_once(
    cloud: MqttEntity, app: ZenohEntity
) -> None:
    topic = app.address.at(0x8003)
    app.subscribe(topic)
    app.unsubscribe(topic)
    channels = [
        Uri(USUBSCRIPTION.authority, USUBSCRIPTION.ue_id, version, SUBSCRIPTION_CHANGE) for version in (3, 4)
    ]

    def changes() -> list[int]:
        about = wire.topic_request(topic)
        received = [payloads(cloud.received(each)) for each in channels]
        return [sum(payload.startswith(about) for payload in each) for each in received]

    wait_until(lambda: changes() == [2, 2], "both changes in both versions")


def test_a_notification_is_carried_both_ways(cloud: MqttEntity, app: ZenohEntity) -> None:
    cloud.send(wire.NOTIFICATION, cloud.address.at(0x8002), app.address, b"down")
    found = app.inbox.wait_one(lambda each: each.payload == b"down")
    assert (found.head.source, found.head.sink) == (cloud.address.at(0x8002), app.address)
    attributes = wire.Attributes(
        wire.new_id(), wire.NOTIFICATION, app.address.at(0x8003), cloud.address, priority=wire.CS1
    )
    app.send_message(attributes, b"up")
    assert payloads(cloud.wait(app.address.at(0x8003), cloud.address)) == [b"up"]


def test_calls_are_carried_both_ways(cloud: MqttEntity, app: ZenohEntity) -> None:
    method = cloud.address.at(7)
    request = app.send_request(method, b"ping")
    (received,) = cloud.wait(app.address, method)
    assert received.payload == b"ping"
    reqid = bytes.fromhex(dict(received.properties.UserProperty)["1"].replace("-", ""))  # type: ignore[union-attr]
    cloud.send(wire.RESPONSE, method, app.address, b"pong", correlation_data=reqid, expiry_s=5)
    assert app.wait_response(request).payload == b"pong"
    listener = app.address.at(9)
    id = cloud.send(wire.REQUEST, cloud.address, listener, b"ping", expiry_s=10)
    sample = app.inbox.wait_one(lambda each: each.attributes is not None and each.head.sink == listener)
    app.respond(sample, b"pong")
    (response,) = cloud.wait(listener, cloud.address)
    assert response.payload == b"pong"
    assert response.properties.CorrelationData == bytes.fromhex(id.replace("-", ""))  # type: ignore[union-attr]


def test_events_and_methods_of_an_ecu_are_at_the_broker(gateway: Gateway, cloud: MqttEntity) -> None:
    topic = Uri("chassis", SPEED, 1, 0x8001)
    cloud.subscribe(topic)
    for number in range(20):
        gateway.ecu.send_to_port(
            wire.event(SPEED, 0x8001, b"%d" % number, session=number + 1), gateway.someip
        )
    assert payloads(cloud.wait(topic, number=20)) == [b"%d" % number for number in range(20)]
    assert cloud.call(Uri("chassis", CLIMATE, 1, ECHO), b"\x15").payload == b"\x15"


def test_a_call_without_a_receiver_gets_an_error_response(cloud: MqttEntity) -> None:
    response = cloud.call(Uri("chassis", CLIMATE, 1, 2), b"")
    assert dict(response.properties.UserProperty)["8"] == str(wire.UNIMPLEMENTED)  # type: ignore[union-attr]


def test_a_subscriber_at_the_broker_gets_its_rate(tmp_path: Path) -> None:
    with running_gateway(tmp_path) as own, ZenohEntity(own.backbone, "hpc.vin1") as app:
        cloud = MqttEntity(own.broker.port)
        topic = app.address.at(0x8001)
        cloud.subscribe(topic, max_frequency=20.0)
        began, number = time.monotonic(), 0
        while (now := time.monotonic()) < began + 1.0:
            app.publish(topic, f"{now}".encode())
            number += 1
            time.sleep(0.002)
        wait_until(lambda: statistics(own.state)["ledger"]["received"] >= number, "all publications")
        wait_until(lambda: len(cloud.received(topic)) >= 17, "the publications of a second")
        got = [float(each) for each in payloads(cloud.received(topic))]
        assert len(got) <= 23
        assert sorted(got) == got
        assert sum(later - earlier < 0.03 for earlier, later in pairwise(got)) <= 3
        ledger = statistics(own.state)["ledger"]
        cloud.client.close()
    assert ledger["throttled"] >= number - 25
    final = own.process.ledger
    assert final["received"] == sum(
        each for name, each in final.items() if name not in {"received", "unaccounted"}
    )


def test_a_durable_endpoint_loses_nothing_when_the_broker_is_killed(tmp_path: Path) -> None:
    """The subscriber is away while the broker is: its session and the streamer's spool keep everything."""
    cloud_keys = "durable = true\nsession_expiry_s = 600"
    with running_gateway(tmp_path, cloud_keys) as own, ZenohEntity(own.backbone, "hpc.vin1") as app:
        cloud = MqttEntity(own.broker.port)
        topic = app.address.at(0x8001)
        cloud.subscribe(topic)
        own.broker.save()  # the sessions
        sent = 0

        def publish(number: int) -> None:
            nonlocal sent
            for _ in range(number):
                app.publish(topic, b"%d" % sent)
                sent += 1

        publish(100)
        cloud.wait(topic, number=100)
        wait_until(lambda: own.endpoint()["unconfirmed_now"] == 0, "the acknowledgements")
        own.broker.send_signal(signal.SIGSTOP)
        publish(100)
        wait_until(lambda: own.endpoint()["sent"] >= 200, "the messages without an acknowledgement")
        own.broker.kill()
        wait_until(lambda: own.endpoint()["links_now"] == 0, "the loss")
        publish(100)
        wait_until(lambda: statistics(own.state)["ledger"]["received"] >= 300, "all publications")
        own.broker.start()
        publish(100)
        numbers = [int(each) for each in payloads(cloud.wait(topic, number=400))]
        lost, reordered = len(set(range(400)) - set(numbers)), sum(a > b for a, b in pairwise(numbers))
        print(f"kills=1 broker_kills=1 accepted={sent} lost={lost} reordered={reordered}")
        assert numbers == list(range(400)), "in order, each once"
        wait_until(lambda: own.endpoint()["unconfirmed_now"] == 0, "the acknowledgements")
        cloud.client.close()
    ledger = own.process.ledger
    assert (ledger["dead_lettered"], ledger["expired"], ledger["queued"]) == (0, 0, 0)


def test_a_killed_streamer_repeats_what_the_broker_did_not_acknowledge(tmp_path: Path) -> None:
    cloud_keys = "durable = true\nsession_expiry_s = 600"
    [backbone] = tcp_ports(1)
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(tmp_path))
        config = write_config(tmp_path, broker.url, f'listen = ["tcp/127.0.0.1:{backbone}"]', cloud_keys)
        process = StreamerProcess(config).wait_ready()
        stack.callback(process.kill)
        cloud = MqttEntity(broker.port)
        stack.callback(cloud.client.close)
        state = tmp_path / "hpc.vin1"
        with ZenohEntity(backbone, "hpc.vin1") as app:
            topic = app.address.at(0x8001)
            cloud.subscribe(topic)
            broker.send_signal(signal.SIGSTOP)
            for number in range(60):
                app.publish(topic, b"%d" % number)
            wait_until(
                lambda: statistics(state)["endpoints"]["cloud"]["spool_committed"] >= 60,
                "the messages on disk",
            )
        process.kill()
        broker.send_signal(signal.SIGCONT)
        with StreamerProcess(config) as again:
            wait_until(lambda: len(cloud.received(topic)) >= 60, "all messages")
            wait_until(lambda: statistics(state)["endpoints"]["cloud"]["unconfirmed_now"] == 0, "the end")
        numbers = [int(each) for each in payloads(cloud.received(topic))]
        assert set(numbers) == set(range(60))
        assert len(numbers) <= 120, "at most one copy of each"
        assert again.ledger["dead_lettered"] == 0


def test_a_stop_while_the_broker_is_frozen_keeps_the_messages_on_disk(tmp_path: Path) -> None:
    """Each arrives after the next start; those that the frozen broker had read come twice."""
    cloud_keys = "durable = true\nsession_expiry_s = 600"
    [backbone] = tcp_ports(1)
    with Mosquitto(tmp_path) as broker:
        config = write_config(tmp_path, broker.url, f'listen = ["tcp/127.0.0.1:{backbone}"]', cloud_keys)
        cloud, state = MqttEntity(broker.port), tmp_path / "hpc.vin1"
        process = StreamerProcess(config).wait_ready()
        with ZenohEntity(backbone, "hpc.vin1") as app:
            topic = app.address.at(0x8001)
            cloud.subscribe(topic)
            broker.send_signal(signal.SIGSTOP)
            for number in range(60):
                app.publish(topic, b"%d" % number)
            wait_until(lambda: statistics(state)["ledger"]["received"] >= 60, "all publications")
            process.send_sigterm()
            assert process.wait_exit() == 0, process.output
        broker.send_signal(signal.SIGCONT)
        with StreamerProcess(config):
            wait_until(
                lambda: {int(each) for each in payloads(cloud.received(topic))} == set(range(60)), "all"
            )
        cloud.client.close()
    assert (process.ledger["dead_lettered"], process.ledger["expired"]) == (0, 0)
    assert len(cloud.received(topic)) <= 120, "at most one copy of each"


def test_a_message_on_disk_that_no_broker_accepts_is_a_dead_letter_and_blocks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version has sent it and not got an acknowledgement, in one connection after another."""
    cloud_keys = "durable = true\nsession_expiry_s = 600"
    [backbone] = tcp_ports(1)
    with Mosquitto(tmp_path) as broker, ExitStack() as stack:
        config = write_config(tmp_path, broker.url, f'listen = ["tcp/127.0.0.1:{backbone}"]', cloud_keys)
        with monkeypatch.context() as earlier:
            (tmp_path / "sitecustomize.py").write_text(_EARLIER_VERSION, encoding="utf-8")
            path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
            earlier.setenv("PYTHONPATH", path)
            process = StreamerProcess(config).wait_ready()
        stack.callback(process.kill)
        cloud = MqttEntity(broker.port)
        stack.callback(cloud.client.close)
        state = tmp_path / "hpc.vin1"

        def counters() -> dict[str, int]:
            found: dict[str, int] = statistics(state)["endpoints"]["cloud"]
            return found

        with ZenohEntity(backbone, "hpc.vin1") as app:
            topic = app.address.at(0x8001)
            cloud.subscribe(topic)
            poison = wire.Attributes(wire.new_id(), wire.PUBLISH, topic, priority=wire.CS1, token="\x01")
            app.send_message(poison, b"poison")
            app.publish(topic, b"good")
            wait_until(lambda: counters()["connection_losses"] >= 2, "a second loss")
            wait_until(lambda: counters()["spool_committed"] >= 2, "the messages on disk")
        process.kill()
        assert cloud.received(topic) == []
        with StreamerProcess(config) as again:
            assert payloads(cloud.wait(topic)) == [b"good"]
            wait_until(lambda: statistics(state)["ledger"]["dead_lettered"] == 1, "the dead letter")
            letters = json.loads(run_command("dead-letters", "ls", again.config, "--json").stdout)
            assert counters()["connection_losses"] == 0
    assert [each["reason"] for each in letters] == ["token has the character U+0001, which MQTT forbids"]


def test_two_streamers_of_a_group_forward_each_message_once(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as broker, ExitStack() as stack:
        states = []
        for authority in ("left", "right"):
            config = write_config(
                tmp_path,
                broker.url,
                'mode = "peer"\nlisten = ["tcp/127.0.0.1:0"]',
                'shared = "vin1"',
                authority=authority,
            )
            text = config.read_text(encoding="utf-8").replace(
                'authorities = ["hpc.vin1"]', 'authorities = ["app"]'
            )
            [port] = tcp_ports(1)
            config.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{port}"), encoding="utf-8")
            stack.enter_context(StreamerProcess(config))
            states.append((tmp_path / authority, stack.enter_context(ZenohEntity(port, "app", 0x77))))
        cloud = MqttEntity(broker.port)
        stack.callback(cloud.client.close)
        receiver = Uri("app", 0x77, 1)
        sent = [
            cloud.send(wire.NOTIFICATION, cloud.address.at(0x8001), receiver, b"%d" % n) for n in range(60)
        ]

        def arrived() -> list[str]:
            samples = [each for _, entity in states for each in entity.inbox.items()]
            return [id_text(each.head.id) for each in samples if each.attributes is not None]

        wait_until(lambda: len(arrived()) >= 60, "all notifications")
        received = [statistics(state)["ledger"]["received"] for state, _ in states]
    assert sorted(arrived()) == sorted(sent)
    assert sum(received) == 60
    assert min(received) > 0, "both had a share"


def test_a_refused_login_is_an_error_of_the_start_with_the_reason(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, ["allow_anonymous false"]) as broker:
        [port] = tcp_ports(1)
        config = write_config(
            tmp_path,
            broker.url,
            f'listen = ["tcp/127.0.0.1:{port}"]',
            'username = "gateway"\npassword = { file = "password" }',
        )
        (tmp_path / "password").write_text("sesame\n", encoding="utf-8")
        checked = run_command("check", str(config), "--offline")
        assert checked.returncode == 0, checked.stderr
        shown = run_command("config", "show", str(config))
        process = StreamerProcess(config)
        code = process.wait_exit()
    assert code == 77, process.output
    assert "refuses the connection: Not authorized (0x87)" in process.output
    assert "sesame" not in process.output + checked.stdout + shown.stdout


def why(gateway: Gateway, address: Uri) -> list[str]:
    """The causes that `ustreamer why` finds; [] if nothing is wrong."""
    done = run_command("why", str(address), gateway.process.config, "--json")
    causes = [each["cause"] for each in json.loads(done.stdout)["findings"]]
    assert done.returncode == (causes != ["healthy"]), done.stderr
    return [] if causes == ["healthy"] else causes


@pytest.fixture
def strict_gateway(tmp_path: Path) -> Iterator[Gateway]:
    """Its broker refuses the topics of hpc.vin1 but those of ue_id 10A0 and of uSubscription."""
    rules = tmp_path / "acl"
    allowed = ("hpc.vin1/10A0/#", "hpc.vin1/0/#", "cloud/#")
    text = "".join(f"topic readwrite {each}\n" for each in allowed)
    rules.write_text(f"{text}topic read #\n", encoding="utf-8")
    with running_gateway(tmp_path, broker_lines=[f"acl_file {rules}"]) as running:
        yield running


def test_a_topic_that_the_broker_refuses_is_avoided_and_reported(strict_gateway: Gateway) -> None:
    gateway, cloud = strict_gateway, MqttEntity(strict_gateway.broker.port)
    with ZenohEntity(gateway.backbone, "hpc.vin1", 0x10A0) as app:
        allowed, forbidden = app.address.at(0x8001), Uri("hpc.vin1", 0x77, 1, 0x8001)
        cloud.subscribe(allowed)
        cloud.subscribe(forbidden)
        app.publish(forbidden, b"the first one shows it")
        wait_until(lambda: gateway.endpoint()["broker_refusals"] == 1, "the refusal")
        for number in range(20):
            app.publish(forbidden, b"no")
            app.publish(allowed, b"%d" % number)
        assert payloads(cloud.wait(allowed, number=20)) == [b"%d" % number for number in range(20)]
        wait_until(lambda: statistics(gateway.state)["ledger"]["dead_lettered"] == 20, "the dead letters")
        letters = run_command("dead-letters", "ls", gateway.process.config, "--json")
        reasons = {each["reason"] for each in json.loads(letters.stdout)}
        assert {each.partition(";")[0] for each in reasons} == {
            "endpoint 'cloud': the broker refuses messages of topic 'hpc.vin1/77/0/1/8001' (0x87)"
        }
        assert why(gateway, forbidden) == ["send_refused"]
        assert "send_refused" not in why(gateway, allowed)
        counters = gateway.endpoint()
        assert (counters["connection_losses"], counters["broker_refusals"]) == (0, 1)
        assert counters["avoided_topics_now"] == 1
    cloud.client.close()


def test_why_explains_an_endpoint_at_a_broker(tmp_path: Path) -> None:
    with running_gateway(tmp_path) as gateway, ZenohEntity(gateway.backbone, "hpc.vin1") as app:
        cloud = MqttEntity(gateway.broker.port)
        up, down = app.address.at(0x8001), cloud.address.at(0x8001)
        assert why(gateway, up) == ["no_subscriber"]
        cloud.subscribe(up)
        app.publish(up, b"up")
        cloud.wait(up)
        assert why(gateway, up) == why(gateway, cloud.address) == []
        app.subscribe(down)
        assert why(gateway, down) == ["publisher_silent"]
        cloud.client.publish(down.chunks, [("uP", "1")], b"no message")
        wait_until(lambda: gateway.endpoint()["refused_properties"] == 1, "the refused packet")
        assert why(gateway, down) == ["input_refused", "publisher_silent"]
        cloud.send(wire.PUBLISH, down, payload=b"down")
        app.wait_events(down)
        gateway.broker.save()  # else a broker that starts may get the message before its subscriber is back
        gateway.broker.kill()
        wait_until(lambda: not gateway.endpoint()["links_now"], "the lost connection")
        app.publish(up, b"waits")
        method = cloud.address.at(7)
        assert [why(gateway, each)[0] for each in (up, method)] == ["link_down", "link_down"]
        assert why(gateway, down)[0] == "publisher_link_down"
        gateway.broker.start()
        assert payloads(cloud.wait(up, number=2)) == [b"up", b"waits"]
        assert why(gateway, up) == []
        cloud.client.close()
