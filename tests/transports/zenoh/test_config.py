# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from ustreamer.transport_port import is_loopback
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.transports.zenoh.locators import parse_locator
from ustreamer.transports.zenoh.transport import zenoh_config
from ustreamer.uprotocol.ustatus import UStatusError


def section(text: str) -> ZenohEndpoint:
    table = tomllib.loads(f'transport = "zenoh"\nauthorities = ["*"]\n{text}')
    return msgspec.convert(
        table, ZenohEndpoint, dec_hook=lambda kind, value: kind(value)
    )  # as the host reads it


def test_without_a_file_no_default_of_zenoh_applies() -> None:
    config = zenoh_config(section('connect = ["tcp/10.0.0.1:7447"]'), "backbone")
    settings = [
        config.get_json(path)
        for path in ("mode", "listen/endpoints", "connect/endpoints", "scouting/multicast/enabled")
    ]
    assert settings == ['"peer"', "[]", '["tcp/10.0.0.1:7447"]', "false"]


def test_every_key_reaches_zenoh() -> None:
    text = 'mode = "router"\nlisten = ["tcp/127.0.0.1:7447", "udp/127.0.0.1:7447"]\nscouting = true'
    config = zenoh_config(section(text), "backbone")
    settings = [config.get_json(path) for path in ("mode", "listen/endpoints", "scouting/multicast/enabled")]
    assert settings == ['"router"', '["tcp/127.0.0.1:7447","udp/127.0.0.1:7447"]', "true"]


FILE = '{ mode: "client", connect: { endpoints: ["tcp/1.1.1.1:1"] }, scouting: { multicast: { enabled: true } } }'


def test_a_file_is_used_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "zenoh.json5"
    path.write_text(FILE)
    config = zenoh_config(section(f'config = "{path}"'), "backbone")
    settings = [config.get_json(p) for p in ("mode", "connect/endpoints", "scouting/multicast/enabled")]
    assert settings == ['"client"', '["tcp/1.1.1.1:1"]', "true"]


def test_keys_override_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "zenoh.json5"
    path.write_text(FILE)
    config = zenoh_config(section(f'config = "{path}"\nmode = "peer"\nconnect = []'), "backbone")
    settings = [config.get_json(p) for p in ("mode", "connect/endpoints", "scouting/multicast/enabled")]
    assert settings == ['"peer"', "[]", "true"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "config, listen, connect and scouting has no connection"),
        ("listen = []\nconnect = []", "has no connection"),
        ('listen = ["127.0.0.1:7447"]', r"listen\[0\]: '127.0.0.1:7447' is no Zenoh endpoint: expected protocol/address"),
        *(
            (f'listen = ["tcp/127.0.0.1:7447{parameters}"]', rf"listen\[0\]: .*{complaint}")
            for parameters, complaint in [
                ("?rel=9", "rel is '9': expected 0 or 1"),
                ("?prio=1-3;rel=", "rel is '': expected 0 or 1"),
                ("?prio=1-9", "prio is '1-9': expected two priorities of 0 to 7"),
                ("?prio=high", "prio is 'high'"),
                ("?reliable=1", "'reliable' is no metadata of Zenoh: expected rel=0"),
                ("?", r"nothing follows the \?"),
                ("#", "nothing follows the #"),
                ("?rel=1#so_rcvbuf=abc", "so_rcvbuf is 'abc': expected a number of bytes"),
                ("#iface=lo;so_sndbuf=-1", "so_sndbuf is '-1'"),
                ("#so_rcvbuf=99999999999", "so_rcvbuf is '99999999999'"),
                ("#dscp=high", "dscp is 'high': expected a number"),
            ]
        ),
        (f'listen = ["unixsock-stream//{"x" * 107}"]', "has 108 bytes, expected at most 107"),
        ('connect = ["tcp/127.0.0.1:7447?rel=9"]', r"connect\[0\]: .*rel is '9'"),
        ('connect = ["tcp/"]', r"connect\[0\]: 'tcp/' is no Zenoh endpoint"),
        ('connect = "tcp/127.0.0.1:7447"', r"Expected `array \| null`, got `str` - at `\$.connect`"),
        ('mode = "cloud"', r"\$.mode"),
        ('listen = ["tcp/127.0.0.1:7447"]\nqueue = 100', r">= 1024 - at `\$.queue`"),
        ('listen = ["tcp/127.0.0.1:7447"]\nqueue = 5000', r"<= 4096 - at `\$.queue`"),
        ('scouting = true\npeers = ["*"]', "peers: '\\*' is not the authority of a streamer"),
        ('scouting = true\npeers = ["G1"]', "peers: UUri 'G1': authority 'G1' is not"),
        ('listne = ["tcp/127.0.0.1:7447"]', "unknown field `listne`"),
    ],
)  # fmt: skip
def test_an_invalid_section_names_its_error(text: str, complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        section(text)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, r"endpoint 'backbone': Zenoh configuration '.*zenoh.json5': No such file"),
        ("{ mode: ", "expected array, boolean"),
        ("{ mdoe: 'peer' }", "unknown field `mdoe`, expected one of"),
        ('{ listen: { endpoints: ["tcp/127.0.0.1:7447?rel=9"] } }', "Zenoh's listen/endpoints: .*rel is '9'"),
        (
            '{ connect: { endpoints: { peer: ["tcp/[::1]:1#dscp=x"] } } }',
            "Zenoh's connect/endpoints: .*dscp is 'x'",
        ),
    ],
)
def test_an_invalid_file_names_its_error(tmp_path: Path, content: str | None, complaint: str) -> None:
    path = tmp_path / "zenoh.json5"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UStatusError, match=f"INVALID_ARGUMENT: .*{complaint}") as caught:
        zenoh_config(section(f'config = "{path}"'), "backbone")
    assert "\n" not in caught.value.message
    assert ".rs:" not in caught.value.message


@pytest.mark.parametrize(
    "parameters", ["?rel=0", "?prio=1-3;rel=1", "#iface=lo", "?rel=1#dscp=0x10;so_rcvbuf=65536;so_sndbuf=0"]
)
def test_metadata_and_config_of_a_locator_are_accepted(parameters: str) -> None:
    locator = f"tcp/127.0.0.1:7447{parameters}"
    config = zenoh_config(section(f'listen = ["{locator}"]'), "backbone")
    assert config.get_json("listen/endpoints") == f'["{locator}"]'
    assert parse_locator(locator, 0).port == 7447


def test_a_locator_refused_by_zenoh_is_named() -> None:
    with pytest.raises(
        UStatusError, match=r"'backbone': Zenoh's listen/endpoints = \[\"tcp/a:1#b\?c\"\]: .*<protocol>"
    ):
        zenoh_config(section('listen = ["tcp/a:1#b?c"]'), "backbone")


def test_a_section_can_be_checked_where_zenoh_is_not_installed() -> None:
    program = (
        "import sys; sys.modules['zenoh'] = None; import ustreamer.transports.zenoh.config; "
        "import ustreamer.transports.zenoh.keys"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_only_this_machine_reaches_a_loopback_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["127.example.org", "127.1", "192.0.2.1", "::", "[::]", "0.0.0.0", ""])
def test_other_machines_may_reach_any_other_address_or_name(host: str) -> None:
    assert not is_loopback(host)
