# SPDX-License-Identifier: Apache-2.0
"""A streamer starts and stops with each file in configs/."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.rigs.certificates import copy_zenoh_files, make_certificates
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from ustreamer.host.runtime import process
from ustreamer.uprotocol.uuri import UUri

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))
USTREAMER = Path(sys.executable).with_name("ustreamer")


def free_port() -> int:
    return tcp_ports(1)[0]


def elsewhere(text: str, state: Path) -> str:
    """The same configuration on ports that are free here, with its state in `state`."""
    text = re.sub(r'^state_dir = ".*"', f'state_dir = "{state}"', text, flags=re.MULTILINE)
    text = re.sub(r"((?:tcp|tls)/127\.0\.0\.1:)\d+", lambda match: f"{match[1]}{free_port()}", text)
    text = re.sub(
        r'^(listen = "127\.0\.0\.1:)\d+', lambda match: f"{match[1]}{free_port()}", text, flags=re.MULTILINE
    )
    return re.sub(r"^port = \d+", lambda _: f"port = {udp_ports(1)[0]}", text, flags=re.MULTILINE)


def test_the_two_files_of_the_readme_exist() -> None:
    assert {"minimal.toml", "vehicle.toml"} <= {path.name for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_configuration_starts_and_stops(path: Path, tmp_path: Path) -> None:
    config = tmp_path / path.name
    if path.name == "secured.toml":
        copy_zenoh_files(tmp_path, make_certificates(tmp_path / "tls", "gateway"))
    config.write_text(elsewhere(path.read_text(encoding="utf-8"), tmp_path / "state"), encoding="utf-8")
    with subprocess.Popen(
        [USTREAMER, "run", config], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as streamer:
        try:
            assert streamer.stdout is not None
            first_line = streamer.stdout.readline()
            streamer.send_signal(signal.SIGTERM)
            _, log = streamer.communicate(timeout=30)
        finally:
            streamer.kill()
    assert first_line == "READY\n", log
    assert streamer.returncode == 0, log
    assert (tmp_path / "state" / "usubscription").is_dir()


def test_the_payloads_that_the_vehicle_describes_can_be_read() -> None:
    streamer = process.load(Path(__file__).parents[2] / "configs/vehicle.toml").streamer()
    wheel, climate = (streamer.decoder(UUri("chassis", service, 1, 0x8001)) for service in (0x1234, 0x3001))
    assert wheel is not None
    assert climate is not None
    assert wheel(bytes.fromhex("41600000 fff6")) == {"speed": 14.0, "slip": -10}
    payload = "00000012  01  04 41b00000  00000006 efbbbf 4869 00  ffff"  # two bytes of a newer ECU
    assert climate(bytes.fromhex(payload)) == {"mode": "heat", "celsius": [22.0], "profile": "Hi"}
