# SPDX-License-Identifier: Apache-2.0
"""Ends and restarts of a streamer: power failure, stop by a supervisor, occupied ports."""

import json
import time
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import Metronome, SomeipNode, ZenohEntity, eventually
from tests.e2e.rigs.streamer import StreamerProcess, assert_ledger_balanced, run_command
from tests.e2e.rigs.vehicle import Vehicle, free_ports, running_vehicle, write_config

APP = 0x10A0
CORE: Final = wire.Uri("hpc.vin1", 4, 1)
START: Final = 1
STOP: Final = 2


# [itest->req~usubscription-subscribe~1] [itest->req~usubscription-subscribe-persistency~1]
def test_subscriptions_survive_a_kill(tmp_path: Path) -> None:
    ports = free_ports()
    config = write_config(tmp_path, ports)
    with SomeipNode(ports.ecu) as ecu, SomeipNode(ports.receiver) as receiver:
        first = StreamerProcess(config)
        vehicle = Vehicle(ports, first.wait_ready(), ecu, receiver)
        kept, left, limited = (vehicle.unused_topic() for _ in range(3))
        with ZenohEntity(ports.backbone, "hpc.vin1", APP) as app:
            app.subscribe(kept)
            app.subscribe(left)
            app.subscribe(limited, max_frequency=10.0)
            app.unsubscribe(left)
            vehicle.send_event(kept, b"before")
            app.wait_events(kept)
            first.kill()  # power failure right after the responses

        started = time.monotonic()
        with StreamerProcess(config), ZenohEntity(ports.backbone, "hpc.vin1", APP) as app:
            print(f"kills=1 ready_ms={1_000 * (time.monotonic() - started):.0f}")
            # The application does not subscribe again; it only listens. Its own messages show that it is connected.
            assert app.call(
                wire.Uri("hpc.vin1", 0, 3, wire.FETCH_SUBSCRIBERS), wire.topic_request(kept)
            ).payload
            for number in range(100):
                for topic in (left, limited, kept):
                    vehicle.send_event(topic, b"%d" % number)
            assert len(app.wait_events(kept, 100)) == 100
            assert app.events(left) == []
            assert 1 <= len(app.events(limited)) < 50


def test_a_stopped_topic_survives_a_kill(tmp_path: Path) -> None:
    ports = free_ports()
    config = write_config(tmp_path, ports)
    with SomeipNode(ports.ecu) as ecu, SomeipNode(ports.receiver) as receiver:
        first = StreamerProcess(config)
        vehicle = Vehicle(ports, first.wait_ready(), ecu, receiver)
        stopped, other = vehicle.unused_topic(), vehicle.unused_topic()
        with ZenohEntity(ports.backbone, "hpc.vin1", APP) as app:
            app.subscribe(stopped)
            app.subscribe(other)
            assert app.call(CORE.at(STOP), wire.topic_request(stopped)).head.commstatus in {None, wire.OK}
            first.kill()  # right after the response

        with StreamerProcess(config), ZenohEntity(ports.backbone, "hpc.vin1", APP) as app:
            [each] = json.loads(run_command("routes", config, "--json").stdout)["stopped"]
            assert each["topic"].endswith(f"{stopped.resource:X}")
            for number in range(50):
                for topic in (stopped, other):
                    vehicle.send_event(topic, b"%d" % number)
            assert len(app.wait_events(other, 50)) == 50
            assert app.events(stopped) == []
            app.call(CORE.at(START), wire.topic_request(stopped))
            numbers = [int(sample.payload) for sample in app.wait_events(stopped, 50)]
            assert numbers == list(range(50))


def test_a_stop_in_the_middle_of_traffic_loses_nothing_that_was_accepted(own_vehicle: Vehicle) -> None:
    with (
        ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app,
        ZenohEntity(own_vehicle.ports.cloud, "cloud") as fleet,
    ):
        topic, limited = own_vehicle.unused_topic(), own_vehicle.unused_topic()
        for peer in (app, fleet):
            peer.subscribe(topic)
            peer.subscribe(limited, max_frequency=40.0)
        calls = 4

        def beat(number: int) -> None:
            own_vehicle.send_event(topic, b"%d" % number)
            own_vehicle.send_event(limited, b"%d" % number)

        with Metronome(500, beat):
            for peer in (app, fleet):
                peer.wait_events(topic, 200)
            own_vehicle.process.send_sigterm()
            assert own_vehicle.process.wait_exit() == 0, own_vehicle.process.output
        ledger = own_vehicle.process.ledger
        assert ledger["queued"] == 0
        assert ledger["throttled"] > 0
        # Every delivery of the ledger arrives: the calls of uSubscription, their responses, an update of each change,
        # and the events.
        published = 4  # each change, in two versions on two networks
        events = ledger["delivered"] - (3 + published) * calls
        peers = (app, fleet)
        eventually(lambda: sum(len(peer.events(each)) for peer in peers for each in (topic, limited)), events)
        for peer in peers:
            numbers = [int(sample.payload) for sample in peer.events(topic)]
            assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("keep", [0, 100, 4096], ids=["nothing", "100 bytes", "a page"])
def test_a_damaged_store_is_never_taken_for_an_empty_one(tmp_path: Path, keep: int) -> None:
    with running_vehicle(tmp_path) as vehicle, ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as app:
        app.subscribe(vehicle.unused_topic())
    [store] = tmp_path.rglob("usubscription/data.mdb")  # a store of dead letters may exist as well
    store.write_bytes(store.read_bytes()[:keep])
    config = tmp_path / "vehicle.toml"
    section = "[plugins.usubscription]\n"
    config.write_text(config.read_text().replace(section, section + 'damaged = "refuse"\n'))
    refused = run_command("run", config)
    assert refused.returncode == 74, refused.stderr
    assert str(store.parent) in refused.stderr
    assert "READY" not in refused.stdout
    assert "Traceback" not in refused.stderr


def disconnect_and_wait(vehicle: Vehicle, app: ZenohEntity) -> None:
    """Let an application leave, and wait until the streamer has noticed."""
    app.session.close()  # type: ignore[no-untyped-call]
    vehicle.process.stderr.wait_one(lambda line: "link_down" in line)


def test_events_wait_for_a_subscriber_that_reconnects(own_vehicle: Vehicle) -> None:
    topic = own_vehicle.unused_topic()
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        app.subscribe(topic)
        disconnect_and_wait(own_vehicle, app)
    sent = [b"%d" % number for number in range(50)]
    for payload in sent:
        own_vehicle.send_event(topic, payload)
    own_vehicle.process.stderr.wait_one(lambda line: "egress.unavailable" in line)
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        assert [sample.payload for sample in app.wait_events(topic, len(sent))] == sent


def test_a_stop_waits_for_a_subscriber_that_reconnects(own_vehicle: Vehicle) -> None:
    topic = own_vehicle.unused_topic()
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        app.subscribe(topic)
        disconnect_and_wait(own_vehicle, app)
    sent = [b"%d" % number for number in range(50)]
    for payload in sent:
        own_vehicle.send_event(topic, payload)
    own_vehicle.wait_received(len(sent))
    own_vehicle.process.stderr.wait_one(lambda line: "egress.unavailable" in line)
    own_vehicle.process.send_sigterm()
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        assert own_vehicle.process.wait_exit() == 0
        assert [sample.payload for sample in app.wait_events(topic, len(sent))] == sent
    assert_ledger_balanced(own_vehicle.process.ledger)


def test_messages_unsent_at_the_drain_limit_are_reported(tmp_path: Path) -> None:
    with running_vehicle(tmp_path, "--drain", "0.3") as vehicle:
        topic = vehicle.unused_topic()
        with ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as app:
            app.subscribe(topic)
            disconnect_and_wait(vehicle, app)
        for number in range(7):
            vehicle.send_event(topic, b"%d" % number)
        vehicle.wait_received(7)
        vehicle.process.stderr.wait_one(lambda line: "egress.unavailable" in line)
        vehicle.process.send_sigterm()
        assert vehicle.process.wait_exit() == 75
        ledger = vehicle.process.ledger
        assert ledger["dead_lettered"] == 7
        assert_ledger_balanced(ledger)


def test_a_second_streamer_on_the_same_ports_fails_with_the_reason(vehicle: Vehicle, tmp_path: Path) -> None:
    config = write_config(tmp_path, vehicle.ports)
    refused = run_command("run", config)
    assert refused.returncode == 69
    assert "READY" not in refused.stdout
    assert any(str(port) in refused.stderr for port in vehicle.ports[:3]), refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_interrupt_stops_it_as_well(tmp_path: Path) -> None:
    with running_vehicle(tmp_path) as vehicle:
        vehicle.process.send_sigint()
        assert vehicle.process.wait_exit() == 0, vehicle.process.output


def test_ready_is_all_that_it_prints(tmp_path: Path) -> None:
    with running_vehicle(tmp_path) as vehicle:
        pass
    assert "".join(vehicle.process.stdout.items()) == "READY\n"
