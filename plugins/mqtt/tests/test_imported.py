# SPDX-License-Identifier: Apache-2.0
"""A configuration of up-streamer with MQTT and static subscriptions, imported, forwards the same from the start."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess, run_command
from tests.e2e.rigs.wire import Uri
from tests.mqtt_rig import Mosquitto, PlainClient, needs_mosquitto
from tests.waiting import wait_until

pytestmark = needs_mosquitto
CONFIG: Final = """
{
  up_streamer_config: { message_queue_size: 10000 },
  streamer_uuri: { authority: "authority-b", ue_id: 78, ue_version_major: 1 },
  usubscription_config: { mode: "static_file", file_path: "subscription_data.json" },
  transports: {
    zenoh: {
      config_file: "ZENOH_CONFIG.json5",
      endpoints: [ { authority: "authority-b", endpoint: "zenoh_1", forwarding: ["mqtt_1"] } ],
    },
    mqtt: {
      config_file: "MQTT_CONFIG.json5",
      endpoints: [ { authority: "authority-a", endpoint: "mqtt_1", forwarding: ["zenoh_1"] } ],
    },
  },
}
"""
ON_ZENOH: Final = Uri("authority-b", 0x3039, 1, 0x8001)
AT_BROKER: Final = Uri("authority-a", 0x5BA0, 1, 0x8001)
STATIC: Final = {
    "//authority-b/3039/1/8001": ["//authority-a/5678/1/1234"],
    "//authority-a/5BA0/1/8001": ["//authority-b/5678/1/1234"],
}


class Imported(NamedTuple):
    config: Path
    zenoh: int
    broker: Mosquitto


@pytest.fixture
def imported(tmp_path: Path) -> Iterator[Imported]:
    [port] = tcp_ports(1)
    zenoh = {
        "mode": "router",
        "listen": {"endpoints": [f"tcp/127.0.0.1:{port}"]},
        "scouting": {"multicast": {"enabled": False}},
    }
    with Mosquitto(tmp_path) as broker:
        (tmp_path / "CONFIG.json5").write_text(CONFIG, encoding="utf-8")
        (tmp_path / "ZENOH_CONFIG.json5").write_text(json.dumps(zenoh), encoding="utf-8")
        mqtt = {"hostname": "127.0.0.1", "port": broker.port}
        (tmp_path / "MQTT_CONFIG.json5").write_text(json.dumps(mqtt), encoding="utf-8")
        (tmp_path / "subscription_data.json").write_text(json.dumps(STATIC), encoding="utf-8")
        written = run_command("import", "up-streamer", tmp_path / "CONFIG.json5")
        assert written.returncode == 0, written.stderr
        config = tmp_path / "gateway.toml"
        config.write_text(f'state_dir = "state"\n{written.stdout}', encoding="utf-8")
        [line] = [each for each in written.stderr.splitlines() if "usubscription_config.file_path" in each]
        command = line.partition("`")[2].partition("`")[0].replace("CONFIG", str(config), 1)
        added = run_command(*command.split()[1:])
        assert (added.returncode, added.stdout) == (0, "2 subscriptions imported\n"), added.stderr
        yield Imported(config, port, broker)


def publish(client: PlainClient, topic: Uri, payload: bytes) -> None:
    id = wire.new_id()
    digits = f"{id.msb:016x}{id.lsb:016x}"
    text = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    client.publish(topic.chunks, [("uP", "1"), ("1", text), ("2", "pub.v1"), ("3", f"up:{topic}")], payload)


def test_an_imported_configuration_forwards_the_same_from_the_start(imported: Imported) -> None:
    with StreamerProcess(imported.config), ZenohEntity(imported.zenoh, "authority-b") as app:
        client = PlainClient(imported.broker.port, "receiver", ["authority-b/#"])
        for number in range(20):
            app.publish(ON_ZENOH.at(0x9001), b"no subscription")
            app.publish(ON_ZENOH, b"%d" % number)
        wait_until(lambda: len(client.received) >= 20, "20 publications at the broker")
        assert {each.topic for each in client.received} == {ON_ZENOH.chunks}
        assert [each.payload for each in client.received] == [b"%d" % number for number in range(20)]
        for number in range(20):
            publish(client, AT_BROKER.at(0x9001), b"no subscription")
            publish(client, AT_BROKER, b"%d" % number)
        events = app.wait_events(AT_BROKER, 20)
        assert [each.payload for each in events] == [b"%d" % number for number in range(20)]
        assert not [each for each in app.inbox.items() if each.payload == b"no subscription"]
        client.close()
