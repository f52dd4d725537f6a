# SPDX-License-Identifier: Apache-2.0
"""`ustreamer test` predicts what a live streamer with the changed configuration decides about the same traffic."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from ustreamer_recorder.rehearsal.command import read_run
from ustreamer_recorder.rehearsal.recorded_traffic import RecordedMessage
from ustreamer_recorder.rehearsal.rehearsal import Decisions, Rehearsal
from ustreamer_recorder.rehearsal.subscriptions import RecordedSubscriptions
from ustreamer_recorder.segments import list_segments

from tests.e2e.operations.test_recording import APP, recording_config
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, SomeipNode, ZenohEntity, ecu_response, eventually
from tests.e2e.rigs.streamer import StreamerProcess, run_command
from tests.e2e.rigs.vehicle import CLIMATE, OFFERED, PROVIDER, Vehicle, VehiclePorts, free_ports
from tests.e2e.rigs.wire import Uri
from ustreamer.host.cli.offline_routing import load_routing

ByTopic = dict[str, list[Decisions]]
"""The decisions about the messages of each topic, in order of arrival."""


def changed(config: Path) -> Path:
    """A configuration that denies one topic and has no throttle."""
    text = config.read_text().replace("[plugins.throttle]\n", "")
    deny = """
[[endpoints.chassis.access]]
allow = false
source = "//chassis/1234/1/8007"

[[endpoints.chassis.access]]
allow = true
"""
    config.write_text(text + deny)
    return config


def decided(directory: Path) -> ByTopic:
    found: ByTopic = defaultdict(list)
    for message in read_run(list_segments(directory))[0].messages():
        found[str(message.head.attributes.source)].append(message.decisions)
    return {topic: each for topic, each in found.items() if "chassis/1234" in topic}


def predicted(config: Path, directory: Path) -> ByTopic:
    found: ByTopic = defaultdict(list)

    def note(message: RecordedMessage, decisions: Decisions) -> None:
        found[str(message.head.attributes.source)].append(decisions)

    subscriptions = RecordedSubscriptions()
    routing = load_routing(config, subscriptions)
    Rehearsal(read_run(list_segments(directory))[0], routing, subscriptions, note).run()
    return {topic: each for topic, each in found.items() if "chassis/1234" in topic}


def run_test(config: Path, directory: Path, code: int) -> dict[str, Any]:
    done = run_command("test", config, "--recording", directory, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def record_drive(config: Path, ports: VehiclePorts) -> Path:
    """A topic without a limit, one whose limit passes the first event, one that the other file denies, one unused."""
    directory = config.parent / "state" / "recordings"
    with (
        SomeipNode(ports.ecu) as ecu,
        SomeipNode(ports.receiver) as receiver,
        StreamerProcess(config) as process,
        ZenohEntity(ports.backbone, "hpc.vin1", APP) as app,
    ):
        vehicle = Vehicle(ports, process, ecu, receiver)
        topics = [vehicle.unused_topic() for _ in range(8)]
        plain, limited, denied = topics[0], topics[1], topics[6]
        assert denied.resource == 0x8007
        app.subscribe(plain)
        app.subscribe(limited, max_frequency=0.01)
        app.subscribe(denied)
        for number in range(20):
            for topic in (limited, denied, topics[7], plain):
                vehicle.send_event(topic, b"%d" % number)
            app.wait_events(plain, number + 1)
    return directory


def test_a_later_live_run_decides_as_predicted(tmp_path: Path) -> None:
    ports = free_ports()
    before, after = tmp_path / "before", tmp_path / "after"
    for place in (before, after):
        place.mkdir()
    keys: dict[str, object] = {"flush_ms": 50}
    old = recording_config(before, ports, **keys)
    new = changed(recording_config(after, ports, **keys))
    drive = record_drive(old, ports)
    assert run_test(old, drive, 0)["changed"] == 0
    narrow = old.with_name("narrow.toml")
    narrow.write_text(re.sub(r"\{ id = 0x8001[^}]*\}, ", "", old.read_text(), count=1))
    assert [
        (each["source"], each["before"], each["after"], each["count"])
        for each in run_test(narrow, drive, 1)["changes"]
    ] == [("up://chassis/1234/1/8001", "forwarded", "no_delivery", 20)]
    alone = old.with_name("alone.toml")
    alone.write_text(re.sub(r"\[plugins\.usubscription\]\n(?:\w.*\n)*", "", old.read_text()))
    assert {
        (each["source"], each["before"], each["after"], each["count"])
        for each in run_test(alone, drive, 1)["changes"]
        if "chassis/1234" in each["source"]
    } == {
        ("up://chassis/1234/1/8001", "forwarded", "no_subscriber", 20),
        ("up://chassis/1234/1/8002", "forwarded", "no_subscriber", 1),
        ("up://chassis/1234/1/8002", "throttled", "no_subscriber", 19),
        ("up://chassis/1234/1/8007", "forwarded", "no_subscriber", 20),
    }
    result = run_test(new, drive, 1)
    assert {(each["source"], each["before"], each["after"], each["count"]) for each in result["changes"]} == {
        ("up://chassis/1234/1/8007", "forwarded", "denied", 20),
        ("up://chassis/1234/1/8002", "throttled", "forwarded", 19),
    }
    live = after / "state" / "recordings"
    with StreamerProcess(new):
        done = run_command("recordings", "replay", drive, "--into", new, "--speed", "2", "--json")
        assert done.returncode == 0, done.stderr
        eventually(lambda: sum(map(len, decided(live).values())), 80)
    found = decided(live)
    assert Counter(map(len, found.values())) == {20: 4}
    assert predicted(new, drive) == found
    assert run_test(new, live, 0)["changed"] == 0


def test_calls_of_removed_methods_are_predicted(tmp_path: Path) -> None:
    ports = free_ports()
    config = recording_config(tmp_path, ports, flush_ms=50)
    directory = tmp_path / "state" / "recordings"
    echo, unknown = Uri("chassis", CLIMATE, 1, ECHO), Uri("chassis", CLIMATE, 1, 0x0009)
    with (
        SomeipNode(ports.ecu, responder=ecu_response) as ecu,
        StreamerProcess(config) as process,
        ZenohEntity(ports.backbone, "hpc.vin1", PROVIDER.ue_id) as app,
    ):
        for _ in range(3):
            assert app.call(echo).head.commstatus in {None, wire.OK}
        assert app.call(unknown).head.commstatus not in {None, wire.OK}
        ecu.send_to_port(wire.someip(OFFERED, 1, wire.SOMEIP_REQUEST, client=7), ports.someip)
        app.inbox.wait_one(lambda each: each.head.sink == PROVIDER.at(1))
        process.stop()
    assert run_test(config, directory, 0)["changed"] == 0
    text = config.read_text()
    fewer = config.with_name("fewer.toml")
    fewer.write_text(text.replace("methods = [0x0001, 0x0002", "methods = [0x0002"))
    found = {
        (each["sink"], each["before"], each["after"], each["count"])
        for each in run_test(fewer, directory, 1)["changes"]
    }
    assert found == {
        (f"up://chassis/{CLIMATE:X}/1/1", "forwarded", "dead_lettered", 3),
        (f"up://hpc.vin1/{PROVIDER.ue_id:X}/1/1", "forwarded", "no_delivery", 1),
    }
    more = config.with_name("more.toml")
    more.write_text(
        text.replace("methods = [0x0001, 0x0002, 0x0003", "methods = [0x0001, 0x0002, 0x0009, 0x0003")
    )
    [change] = run_test(more, directory, 1)["changes"]
    assert (change["before"], change["after"], change["count"]) == ("dead_lettered", "forwarded", 1)


def test_wrong_input_is_one_line(tmp_path: Path) -> None:
    config = recording_config(tmp_path, free_ports())
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(config.read_text().replace("[plugins.throttle]", "[plugins.throttle]\ntolerance = 7"))
    for arguments, code, text in (
        ((config, "--recording", tmp_path / "none"), 2, "No such file or directory"),
        ((config, "--recording", tmp_path), 2, "no run  (have: none)"),
        ((wrong, "--recording", tmp_path), 78, "tolerance"),
    ):
        done = run_command("test", *arguments)
        assert (done.returncode, text in done.stderr, "Traceback" in done.stderr) == (code, True, False), done
