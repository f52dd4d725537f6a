# SPDX-License-Identifier: Apache-2.0
"""The copy of a configuration reaches nothing but loopback, and is valid."""

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ustreamer.host.attack.attack import Need
from ustreamer.host.attack.config_copy import FreePorts, copied, toml_text
from ustreamer.host.attack.target import NoVehiclePath, read_target
from ustreamer.host.runtime import process
from ustreamer.uprotocol.uuri import UUri

ROOT = Path(__file__).parents[3]
FAR = """
authority = "hpc"
state_dir = "/var/lib/ustreamer"

[observe]
listen = "10.0.0.1:9464"
allow_remote = true

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc"]
mode = "client"
connect = ["tcp/10.0.0.9:7447"]
scouting = true

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "10.0.0.1"
port = 30500
interface = "eth0"
clients = ["10.0.0.0/24", "127.0.0.0/8"]
sd = { multicast = "224.244.224.245", interface = "10.0.0.1", networks = ["10.0.0.0/24"] }
services = [
    { service = 1, major = 1, events = [{ id = 0x8001 }], remote = "10.0.0.2:30501" },
    { service = 2, major = 1, methods = [1], remote = "10.0.0.2:30501" },
    { service = 3, major = 1, methods = [1], remote = "10.0.0.3:30501" },
    { service = 4, major = 1, events = [{ id = 0x8001, eventgroup = 1 }], offered = true, provider = "//hpc/1/1/0", eventgroups = [{ id = 1, multicast = "239.1.1.1:30600" }] },
]

[plugins.usubscription]
[plugins.wamp]
listen = ["wss://0.0.0.0:8080/ws", "ws+unix:///run/wamp.sock"]
tls = { certificate = "tls/server.pem", key = "/etc/server.key" }
users = [{ authid = "a", ticket = { file = "secret" } }]
"""


def copy_of(text: str, directory: Path) -> dict[str, Any]:
    return copied(tomllib.loads(text), Path("/etc/car"), directory, itertools.count(40_000).__next__)


def test_no_address_of_another_machine_is_left(tmp_path: Path) -> None:
    text = toml_text(copy_of(FAR, tmp_path))
    hosts = set(re.findall(r"\d+\.\d+\.\d+\.\d+", text))
    assert all(each.startswith(("127.", "224.244.", "239.244.")) for each in hosts), hosts
    assert "eth0" not in text
    assert "scouting = false" in text
    assert "connect" not in text
    assert str(tmp_path / "state") in text


def test_equal_addresses_stay_equal_and_different_ones_different(tmp_path: Path) -> None:
    chassis = copy_of(FAR, tmp_path)["endpoints"]["chassis"]
    first, second, third, _ = chassis["services"]
    assert first["remote"] == second["remote"] != third["remote"]
    assert first["remote"].split(":")[0] != third["remote"].split(":")[0] != chassis["bind"]
    assert chassis["sd"]["interface"] == chassis["bind"]
    assert chassis["clients"] == ["127.1.0.0/16", "127.0.0.0/8"]


def test_files_are_used_where_they_are(tmp_path: Path) -> None:
    wamp = copy_of(FAR, tmp_path)["plugins"]["wamp"]
    assert wamp["tls"] == {"certificate": "/etc/car/tls/server.pem", "key": "/etc/server.key"}
    assert wamp["users"][0]["ticket"] == {"file": "/etc/car/secret"}
    assert wamp["listen"][1] == f"ws+unix://{tmp_path}/wamp1.sock"


def test_the_file_is_not_changed(tmp_path: Path) -> None:
    data = tomllib.loads(FAR)
    copied(data, tmp_path, tmp_path, itertools.count(40_000).__next__)
    assert data == tomllib.loads(FAR)


@pytest.mark.parametrize("value", [{"a-b": [1, 2.5, True, {"x": 'a "b"\n'}], "ä": {}}, {"t": {"u": "\\"}}])
def test_toml_text_is_read_as_it_was(value: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(value)) == value


def loaded(text: str, directory: Path) -> Any:
    file = directory / "copy.toml"
    file.write_text(
        toml_text(copied(tomllib.loads(text), directory, directory, itertools.count(40_000).__next__))
    )
    return process.load(file).config


def test_the_target_of_the_shipped_vehicle(tmp_path: Path) -> None:
    target = read_target(loaded((ROOT / "configs/vehicle.toml").read_text(), tmp_path))
    assert target.event is not None
    assert target.event.topic == UUri("chassis", 0x1234, 1, 0x8001)
    assert (target.home.name, target.outer and target.outer.name) == ("backbone", "cloud")
    assert target.parts() == {
        Need.ZENOH,
        Need.OUTER,
        Need.USUBSCRIPTION,
        Need.SOMEIP,
        Need.OFFERED,
        Need.OFFERED_METHOD,
        Need.ECU_METHOD,
    }


def test_the_weak_configuration_has_all_parts(tmp_path: Path) -> None:
    target = read_target(loaded((ROOT / "tests/e2e/operations/weak.toml").read_text(), tmp_path))
    assert target.parts() == set(Need)


def test_a_configuration_without_a_vehicle_path_is_refused(tmp_path: Path) -> None:
    text = """
authority = "hpc"
state_dir = "state"
[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc"]
listen = ["tcp/127.0.0.1:1"]
[plugins.usubscription]
"""
    with pytest.raises(NoVehiclePath, match="no vehicle path to measure"):
        read_target(loaded(text, tmp_path))


def test_free_ports_differ() -> None:
    ports = FreePorts()
    try:
        found = [ports.allocate() for _ in range(20)]
    finally:
        ports.release()
    assert len(set(found)) == 20
