# SPDX-License-Identifier: Apache-2.0
"""Administration of a running streamer: by uProtocol calls, commands over the admin socket, and signals."""

import json
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import Metronome, ZenohEntity, eventually
from tests.e2e.rigs.streamer import run_command, statistics
from tests.e2e.rigs.vehicle import Vehicle, running_vehicle
from tests.e2e.rigs.wire import Attributes, Uri

CORE: Final = Uri("hpc.vin1", 4, 1)
START, STOP, ROUTES, STATISTICS = 1, 2, 3, 4
HZ: Final = 1000
RELOADS: Final = 4
"""Half of them by signal, half by command."""
STOPS: Final = 3


# --------------------------------------------------------------------------------------------- core.ustreamer, by Zenoh


def test_a_subscriber_stops_and_starts_a_topic_without_effect_on_others(
    vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity
) -> None:
    topic = vehicle.unused_topic()
    for peer in (app, fleet):
        peer.subscribe(topic)

    def call(method: int) -> None:
        assert fleet.call(CORE.at(method), wire.topic_request(topic)).head.commstatus in {None, wire.OK}

    vehicle.send_event(topic, b"0")
    fleet.wait_events(topic)
    call(STOP)
    for n in range(1, 206):
        vehicle.send_event(topic, b"%d" % n)
    app.wait_events(topic, 206)
    assert len(fleet.events(topic)) == 1
    call(START)
    vehicle.send_event(topic, b"206")
    payloads = [b"%d" % n for n in range(207)]
    for peer in (app, fleet):
        assert [sample.payload for sample in peer.wait_events(topic, 207)] == payloads


def test_every_application_may_fetch_routes(vehicle: Vehicle, app: ZenohEntity) -> None:
    topic = vehicle.unused_topic()
    app.subscribe(topic, max_frequency=40.0)
    vehicle.send_event(topic)
    app.wait_events(topic)
    found = wire.fields(app.call(CORE.at(ROUTES), wire.topic_request(topic)).payload)
    endpoints = [wire.fields(each) for each in found[1] if isinstance(each, bytes)]
    assert {wire.message_in(each, 1): wire.message_in(each, 2) for each in endpoints} == {
        b"backbone": b"zenoh",
        b"cloud": b"zenoh",
        b"chassis": b"someip",
    }
    [route] = [wire.fields(each) for each in found[2] if isinstance(each, bytes)]
    assert Uri.decode(wire.message_in(route, 1) or b"") == topic
    assert wire.message_in(route, 2) == b"chassis"
    target = wire.fields(wire.message_in(route, 3) or b"")
    assert (wire.message_in(target, 1), wire.number_in(target, 3)) == (b"backbone", 25_000_000)


def test_every_application_may_fetch_statistics(vehicle: Vehicle, app: ZenohEntity) -> None:
    found = wire.fields(app.call(CORE.at(STATISTICS)).payload)
    ledger = wire.fields(wire.message_in(found, 2) or b"")
    assert (wire.number_in(ledger, 1) or 0) > 0
    names = {wire.message_in(wire.fields(each), 1) for each in found[3] if isinstance(each, bytes)}
    assert names == {b"self", b"backbone", b"cloud", b"chassis"}


@pytest.mark.parametrize(
    ("method", "payload", "code"),
    [
        (7, b"", wire.UNIMPLEMENTED),
        (STOP, b"\xff", wire.INVALID_ARGUMENT),
        (STOP, b"", wire.INVALID_ARGUMENT),
        (START, wire.topic_request(Uri("chassis", 1, 1, 1)), wire.INVALID_ARGUMENT),
    ],
)
def test_an_invalid_call_is_answered_with_its_error_code(
    app: ZenohEntity, method: int, payload: bytes, code: int
) -> None:
    assert app.call(CORE.at(method), payload).status.code == code


# ------------------------------------------------------------------------------------------------------------ commands


@pytest.fixture
def config(own_vehicle: Vehicle, tmp_path: Path) -> Path:
    """The configuration file of `own_vehicle`."""
    return tmp_path / "vehicle.toml"


def json_of_command(command: str, config: Path, *arguments: str) -> Any:
    found = run_command(*command.split(), config, *arguments, "--json")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def letters_written_and_kept(config: Path) -> tuple[int, int]:
    """The dead letters that were written since the start, and those in the store now."""
    found = statistics(config.parent / "state")["dead_letters"]
    return found["persisted"], found["stored"]


def test_a_dead_letter_is_listed_and_redriven_by_command(own_vehicle: Vehicle, config: Path) -> None:
    provider = Uri("chassis", 0x3001, 1, 0x0001)
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        nowhere = Attributes(
            wire.new_id(),
            wire.REQUEST,
            app.address,
            Uri("chassis", 0x3FFF, 1, 1),
            priority=wire.CS4,
            ttl=5000,
            token="ignition",
        )
        app.send_message(nowhere, b"22 C")
        app.wait_response(nowhere.id)
        eventually(lambda: letters_written_and_kept(config), (1, 1))
        [letter] = json_of_command("dead-letters ls", config)
        shown = json_of_command("dead-letters show", config, str(letter["number"]))
        assert (shown["payload"], shown["has_token"], shown["code"]) == (b"22 C".hex(), True, "NOT_FOUND")
        assert "ignition" not in json.dumps([letter, shown])
        redriven = json_of_command("dead-letters redrive", config, str(letter["number"]))
        assert redriven["redriven"] == 1
        # It fails as before, is answered under its new id, and is a dead letter again.
        eventually(lambda: letters_written_and_kept(config), (2, 1))
        assert [each["number"] for each in json_of_command("dead-letters ls", config)] == [2]
        assert json_of_command("dead-letters purge", config, "--all") == {"purged": 1}
        assert app.call(provider, b"works").payload == b"works"


def test_commands_show_routes_statistics_and_plugins_of_a_running_streamer(
    own_vehicle: Vehicle, config: Path
) -> None:
    topic = own_vehicle.unused_topic()
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        app.subscribe(topic)
        own_vehicle.send_event(topic)
        app.wait_events(topic)
        name = f"/{topic.ue_id:X}/{topic.version:X}/{topic.resource:X}"
        targets = json_of_command("routes", config)["targets"]
        # The application listens to everything, so to the change topics of uSubscription, too.
        assert len([each for each in targets if each["topic"].endswith(name)]) == len(targets) - 2 == 1
        top = json_of_command("top", config)
        assert top["unaccounted"] == 0
        assert {each["name"] for each in json_of_command("plugins", config)} == {"usubscription", "throttle"}
    second = run_command("run", config)
    assert second.returncode == 69
    assert "expected no other streamer" in second.stderr


# -------------------------------------------------------------------------------------------------- under load


def variant(text: str, number: int) -> str:
    """The configuration of the vehicle with other authorities, limits and tolerance each time."""
    return (
        text.replace('authorities = ["cloud"]', f'authorities = ["cloud", "fleet{number}"]')
        .replace("[plugins.throttle]", f"[plugins.throttle]\ntolerance = 0.{number % 4}")
        .replace(
            "[plugins.usubscription]",
            f"[egress.default]\nqueue_messages = {10_000 + number}\n[plugins.usubscription]",
        )
    )


def test_reloads_under_load_lose_nothing_and_send_nothing_twice(own_vehicle: Vehicle, config: Path) -> None:
    text = config.read_text(encoding="utf-8")
    process = own_vehicle.process
    with (
        ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app,
        ZenohEntity(own_vehicle.ports.cloud, "cloud") as fleet,
    ):
        topic = own_vehicle.unused_topic()
        for peer in (app, fleet):
            peer.subscribe(topic)
        with Metronome(HZ, lambda number: own_vehicle.send_event(topic, b"%d" % number)) as ecu:
            app.wait_events(topic, 100)
            for number in range(1, RELOADS + 1):
                config.write_text(variant(text, number), encoding="utf-8")
                if number % 2:
                    process.send_sighup()
                else:
                    assert len(json_of_command("reload", config)["changed"]) >= 2
                process.stderr.wait_count(lambda line: '"streamer.reloaded"' in line, number)
                config.write_text(variant(text, number).replace("someip", "some-ip"), encoding="utf-8")
                process.send_sighup()
                process.stderr.wait_count(lambda line: '"control.reload_refused"' in line, number)
            seen = len(app.events(topic))
            app.wait_events(topic, seen + 100)
            ecu.stop()
        for peer in (app, fleet):
            numbers = [int(sample.payload) for sample in peer.wait_events(topic, ecu.beats)]
            assert numbers == list(range(ecu.beats))
        print(f"reloads={2 * RELOADS} refused={RELOADS} messages={ecu.beats} lost=0 duplicates=0")
        assert process.is_alive
    # The fixture checks that the streamer exits with 0 and that its ledger balances.


@pytest.mark.parametrize("number", range(STOPS))
def test_a_stop_under_load_delivers_or_counts_all_that_was_accepted(tmp_path: Path, number: int) -> None:
    with running_vehicle(tmp_path) as vehicle:
        topic = vehicle.unused_topic()
        with (
            ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as app,
            ZenohEntity(vehicle.ports.cloud, "cloud") as fleet,
        ):
            for peer in (app, fleet):
                peer.subscribe(topic)
            with Metronome(HZ, lambda number: vehicle.send_event(topic, b"%d" % number)):
                app.wait_events(topic, 200 + 28 * number)
                stopped = time.monotonic()
                vehicle.process.send_sigterm()
                assert vehicle.process.wait_exit() == 0, vehicle.process.output
                stop_s = time.monotonic() - stopped
            ledger = vehicle.process.ledger
            assert (ledger["queued"], ledger["dead_lettered"]) == (0, 0)
            # Every delivery of the ledger arrives: two calls of uSubscription, their responses, an update of each, its
            # publication in two versions on two networks, and the events.
            events = ledger["delivered"] - (3 + 4) * 2
            eventually(lambda: sum(len(peer.events(topic)) for peer in (app, fleet)), events)
            for peer in (app, fleet):
                numbers = [int(sample.payload) for sample in peer.events(topic)]
                assert numbers == list(range(len(numbers)))
    print(f"stops=1 accepted={events} accepted_lost=0 stop_s={stop_s:.2f}")


def test_a_stop_that_hits_the_drain_limit_reports_the_unsent_messages(tmp_path: Path) -> None:
    with running_vehicle(tmp_path, "--drain", "0.2") as vehicle:
        topic = vehicle.unused_topic()
        with ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as app:
            app.subscribe(topic)
        vehicle.process.stderr.wait_one(lambda line: "link_down" in line)
        for number in range(50):
            vehicle.send_event(topic, b"%d" % number)
        vehicle.wait_received(50)
        vehicle.process.stderr.wait_one(lambda line: "egress.unavailable" in line)
        vehicle.process.send_sigterm()
        assert vehicle.process.wait_exit() == 75
        ledger = vehicle.process.ledger
        assert ledger["dead_lettered"] == 50
        assert ledger["queued"] == 0
        assert ledger["received"] == sum(count for name, count in ledger.items() if name != "received")
        assert "50 messages were not sent within 0.2 s" in vehicle.process.output
    letters = json_of_command("dead-letters ls", tmp_path / "vehicle.toml")
    assert [each["code"] for each in letters] == ["UNAVAILABLE"] * 50


# ------------------------------------------------------------------------------------------------------------------ tap


def test_a_tap_shows_the_verdict_of_each_message(own_vehicle: Vehicle, config: Path) -> None:
    topic = own_vehicle.unused_topic()
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        app.subscribe(topic)
        options = ("--source", str(topic), "--json", "--payload", "--count", "20")
        with Metronome(100, lambda number: own_vehicle.send_event(topic, b"%d" % number, session=number + 1)):
            done = run_command("tap", config, *options)
        assert (done.returncode, done.stderr) == (0, "")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        numbers = [int(bytes.fromhex(each["payload"])) for each in lines]
        assert numbers == list(range(numbers[0], numbers[0] + 20))
        for each in lines:
            assert (each["source"], each["type"], each["sink"]) == (f"up:{topic}", "PUBLISH", None)
            assert (each["ingress"], each["egress"], each["verdict"]) == ("chassis", "backbone", "delivered")
            assert (each["attempts"], each["code"]) == (1, None)
        received = app.wait_events(topic, numbers[-1] + 1)
        by_payload = {sample.payload: sample.head.id for sample in received}
        shown = {b"%d" % number: each["id"] for number, each in zip(numbers, lines, strict=True)}
        assert {payload: _text(by_payload[payload]) for payload in shown} == shown


def test_explain_predicts_the_route_of_a_message(own_vehicle: Vehicle, config: Path) -> None:
    topic = own_vehicle.unused_topic()
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        app.subscribe(topic, max_frequency=40.0)
        explained = json_of_command("explain", config, "--source", str(topic))
        assert explained["verdict"] == "delivered"
        assert explained["targets"] == [{"endpoint": "backbone", "subscriber": None, "period_ns": 25_000_000}]
        own_vehicle.send_event(topic)
        app.wait_events(topic)
        targets = json_of_command("routes", config)["targets"]
        [target] = [each for each in targets if each["ingress"] == "chassis"]
        wanted = {name: target[name] for name in ("endpoint", "subscriber", "period_ns")}
        assert (target["ingress"], [wanted]) == (explained["ingress"], explained["targets"])
        unwanted = json_of_command("explain", config, "--source", str(own_vehicle.unused_topic()))
        assert (unwanted["verdict"], unwanted["targets"]) == ("no_subscriber", [])


def _text(id: wire.Id) -> str:
    text = f"{id.msb:016x}{id.lsb:016x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
