# SPDX-License-Identifier: Apache-2.0
"""The shipped unit under a real systemd: a receiving thread hangs, and the process is killed and started again.

The unit keeps its watchdog, its restarts and its sandbox. Only what names the machine is replaced: the program, the
user, and the directories of the test.
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SomeipNode, ZenohEntity, eventually
from tests.e2e.rigs.hanging_plugin import HANG, SECTION, install_hanging_plugin
from tests.e2e.rigs.streamer import COMMAND, run_command, statistics
from tests.e2e.rigs.user_systemd import UserSystemd, running_systemd
from tests.e2e.rigs.vehicle import CLIMATE, VehiclePorts, free_ports, write_config
from tests.waiting import wait_until
from ustreamer.testing.ledger import assert_accounted

UNIT: Final = Path(__file__).parents[3] / "deploy/systemd/ustreamer.service"
NAME: Final = UNIT.name
APP: Final = 0x10A0
MAX_RESTART_S: Final = 10.0
_US_PER_S: Final = 1_000_000
SPEED: Final = 0x1234
# The last two end with 226/NAMESPACE in the virtual machine of these tests, also for /bin/true alone.
_LEFT_OUT: Final = ("User=", "Group=", "ProtectKernelLogs=", "ProtectKernelTunables=")


def unit_of(config: Path) -> str:
    """The shipped unit, for this configuration, by this user, with its files in the directory of the test."""
    text = UNIT.read_text(encoding="utf-8")
    command = f"ExecStart={COMMAND} run --log-format json --drain 5 {config}"
    replaced, count = re.subn(r"^ExecStart=/usr/bin/ustreamer run .*$", command, text, flags=re.MULTILINE)
    assert count == 1
    kept = [line for line in replaced.splitlines() if not line.startswith(_LEFT_OUT)]
    service = [
        f"Environment=PYTHONPATH={config.parent}",
        f"StandardOutput=append:{config.parent}/log",
        f"StandardError=append:{config.parent}/log",
        f"ReadWritePaths={config.parent}",
        "PrivateTmp=no",  # the directory of the test is in /tmp
        "ProtectHome=read-only",  # the environment of the test may be below /home
    ]
    at = kept.index("[Install]")
    return "\n".join([*kept[:at], *service, "", *kept[at:], ""])


class Service:
    """The streamer as a service. `ports` are those of its vehicle."""

    def __init__(self, systemd: UserSystemd, config: Path, ports: VehiclePorts, ecu: SomeipNode) -> None:
        self._systemd = systemd
        self.config = config
        self.ports = ports
        self._ecu = ecu

    def send_event(self, topic: wire.Uri, payload: bytes) -> None:
        datagram = wire.event(topic.ue_id & 0xFFFF, topic.resource, payload, session=1)
        self._ecu.send_to_port(datagram, self.ports.someip)

    def property(self, name: str) -> str:
        return self._systemd.properties(NAME)[name]

    def began_s(self) -> float:
        """When the present process was started, on the monotonic clock."""
        return int(self.property("ExecMainStartTimestampMonotonic")) / _US_PER_S

    def ready_s(self) -> float:
        return int(self.property("ActiveEnterTimestampMonotonic")) / _US_PER_S

    def is_restarted(self) -> bool:
        return (self.property("NRestarts"), self.property("ActiveState")) == ("1", "active")

    def persisted(self, endpoint: str) -> int:
        queues = statistics(self.config.parent / "state")["egress_queues"]
        return sum(each["persisted"] for each in queues if each["endpoint"] == endpoint)

    def log(self) -> str:
        return (self.config.parent / "log").read_text(encoding="utf-8")

    def dead_letters(self) -> list[str]:
        """Those of the chassis. Responses to the fleet are sent again when its link ends, and expire without it."""
        found = json.loads(run_command("dead-letters", "ls", self.config, "--json").stdout)
        return sorted(json.dumps(each) for each in found if each["endpoint"] == "chassis")

    def stop(self) -> None:
        assert self._systemd.control("stop", NAME).returncode == 0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    ports = free_ports()
    config = write_config(tmp_path, ports)
    text = config.read_text(encoding="utf-8")
    text = text.replace('authorities = ["cloud"]\n', 'authorities = ["cloud"]\ndurable = true\n')
    config.write_text(text + SECTION, encoding="utf-8")
    install_hanging_plugin(tmp_path)
    with running_systemd() as systemd, SomeipNode(ports.ecu) as ecu, SomeipNode(ports.receiver):
        systemd.start(NAME, unit_of(config))
        yield Service(systemd, config, ports, ecu)


def test_a_hanging_receiving_thread_is_restarted_and_nothing_stored_is_lost(service: Service) -> None:
    ports, stored = service.ports, wire.Uri("chassis", SPEED, 1, 0x8002)
    topic, limited = wire.Uri("chassis", SPEED, 1, 0x8001), wire.Uri("chassis", SPEED, 1, 0x8003)
    with ZenohEntity(ports.cloud, "cloud", APP) as fleet:
        fleet.subscribe(stored)
        service.send_event(stored, b"first")
        fleet.wait_events(stored, 1)
    wait_until(lambda: "link_down" in service.log(), "the end of the link to the cloud")
    with ZenohEntity(ports.backbone, "hpc.vin1", APP) as app:
        app.subscribe(topic)
        app.subscribe(limited, max_frequency=10.0)
        app.call(wire.Uri("chassis", CLIMATE, 1, 0x7001), b"")  # no such method: a dead letter
        wait_until(service.dead_letters, "a stored dead letter")
        letters = service.dead_letters()
        for number in range(3):
            service.send_event(stored, b"%d" % number)
        wait_until(lambda: service.persisted("cloud") == 3, "the events on disk")

        hung_s = time.monotonic()
        service.send_event(topic, HANG)
        wait_until(service.is_restarted, "the restart", within_s=60.0)
    restarted_s, ready_s = service.began_s() - hung_s, service.ready_s() - hung_s
    print(f"restarted_s={restarted_s:.1f} ready_s={ready_s:.1f}", file=sys.stderr)
    assert 0 < restarted_s <= MAX_RESTART_S
    assert service.dead_letters() == letters

    # No application subscribes again.
    with ZenohEntity(ports.cloud, "cloud", APP) as fleet, ZenohEntity(ports.backbone, "hpc.vin1", APP) as app:
        wait_until(
            lambda: fleet.events(stored) and fleet.events(stored)[-1].payload == b"2", "the stored events"
        )
        *copies, zero, one, two = fleet.events(stored)
        assert [each.payload for each in (zero, one, two)] == [b"0", b"1", b"2"]
        # A message that was unconfirmed when its link ended is on disk. The next start sends it before all others.
        assert [each.payload for each in copies] in ([], [b"first"])
        assert app.call(wire.Uri("hpc.vin1", 0, 3, wire.FETCH_SUBSCRIBERS), wire.topic_request(topic)).payload
        for number in range(100):
            service.send_event(topic, b"%d" % number)
            service.send_event(limited, b"%d" % number)
        assert len(app.wait_events(topic, 100)) == 100
        assert 1 <= len(app.events(limited)) < 50
    eventually(lambda: service.persisted("cloud"), 0)
    service.stop()
    [*_, stopped] = service.log().splitlines()
    record = json.loads(stopped)
    assert record["event"] == "streamer.stopped"
    assert_accounted(record["ledger"], queued=0)
