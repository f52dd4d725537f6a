# SPDX-License-Identifier: Apache-2.0
"""`ustreamer check` warns of what other users and other machines reach: keys, anonymous listeners, open endpoints."""

from pathlib import Path

import pytest

from ustreamer.host.cli.main import main

HEAD = """\
authority = "hpc"
state_dir = "state"
[endpoints.backbone]
transport = "local"
network = "exposure"
authorities = ["hpc"]
[plugins.usubscription]
"""
RULE = 'access = [{ allow = true, type = "publish" }]'


def warnings(directory: Path, section: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The warnings about a valid file with this section."""
    path = directory / "gateway.toml"
    path.write_text(HEAD + section, encoding="utf-8")
    path.chmod(0o600)
    assert main(["check", "--offline", str(path)]) == 0
    return [line for line in capsys.readouterr().err.splitlines() if "warning: " in line]


# --- keys of TLS ------------------------------------------------------------------------------------------------------

WAMP_TLS = """
[plugins.wamp]
listen = "wss://127.0.0.1:8443/ws"
users = [{ authid = "a", ticket = "t" }]
tls = { certificate = "tls.pem", key = "tls.key" }
"""
MQTT_TLS = """
[endpoints.cloud]
transport = "mqtt"
authorities = ["cloud"]
broker = "mqtts://127.0.0.1"
tls = { certificate = "tls.pem", key = "tls.key" }
[plugins.mqtt]
"""
ZENOH_TLS = """
[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
config = "zenoh.json5"
listen = ["tls/127.0.0.1:7448"]
connect = []
scouting = false
"""


def zenoh_file(directory: Path, settings: str, mode: int = 0o600) -> None:
    path = directory / "zenoh.json5"
    path.write_text(f"{{ transport: {{ {settings} }} }}", encoding="utf-8")
    path.chmod(mode)


@pytest.mark.parametrize("section", [WAMP_TLS, MQTT_TLS], ids=["wamp", "mqtt"])
@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o604, True), (0o644, True)])
def test_a_key_file_that_everyone_can_read_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, mode: int, warned: bool
) -> None:
    for name in ("tls.pem", "tls.key"):
        (tmp_path / name).touch(0o644)
    (tmp_path / "tls.key").chmod(mode)
    found = warnings(tmp_path, section, capsys)
    assert len(found) == warned
    for each in found:
        assert f"tls.key: warning: every user of this machine can read the private key in {tmp_path}" in each


@pytest.mark.parametrize(
    "setting",
    [
        'link: { tls: { listen_private_key: "KEY" } }',
        'link: { tls: { connect_private_key: "KEY" } }',
        'auth: { usrpwd: { dictionary_file: "KEY" } }',
        'auth: { pubkey: { private_key_file: "KEY" } }',
    ],
)
def test_a_key_file_of_zenoh_that_everyone_can_read_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    key = tmp_path / "node.key"
    key.touch(0o600)
    zenoh_file(tmp_path, setting.replace("KEY", str(key)))
    assert warnings(tmp_path, ZENOH_TLS, capsys) == []
    key.chmod(0o644)
    [found] = warnings(tmp_path, ZENOH_TLS, capsys)
    assert f"every user of this machine can read {key}" in found
    assert ":12:" in found, "the line of `config`"


@pytest.mark.parametrize(
    "setting",
    [
        'link: { tls: { listen_private_key_base64: "c2VjcmV0" } }',
        'auth: { usrpwd: { user: "gateway", password: "c2VjcmV0" } }',
    ],
)
def test_a_secret_in_a_zenoh_file_that_everyone_can_read_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    zenoh_file(tmp_path, setting)
    assert warnings(tmp_path, ZENOH_TLS, capsys) == []
    zenoh_file(tmp_path, setting, mode=0o644)
    [found] = warnings(tmp_path, ZENOH_TLS, capsys)
    assert "every user of this machine can read transport/" in found
    assert "c2VjcmV0" not in found


# --- listeners and networks -------------------------------------------------------------------------------------------


def zenoh(*keys: str) -> str:
    return "\n".join(('[endpoints.cloud]\ntransport = "zenoh"\nauthorities = ["cloud"]', *keys, ""))


def someip(*keys: str) -> str:
    return "\n".join(
        ('[endpoints.chassis]\ntransport = "someip"\nauthorities = ["chassis"]\nport = 30599', *keys, "")
    )


def mqtt(*keys: str) -> str:
    section = '[endpoints.cloud]\ntransport = "mqtt"\nauthorities = ["cloud"]'
    return "\n".join((section, *keys, "[plugins.mqtt]", ""))


def wamp(*keys: str) -> str:
    return "\n".join(("[plugins.wamp]", *keys, ""))


NO_RULES = "no access rules: every entity behind endpoint "
ANYONE = "any host that reaches this address can "
CLAIMS = f"{ANYONE}claim any source in the access rules"
CASES = [
    (zenoh('listen = ["tcp/127.0.0.1:7448"]'), []),
    (zenoh('listen = ["tcp/192.0.2.1:7448"]'), [f"{ANYONE}send and receive"]),
    (zenoh('listen = ["tcp/[::]:7448"]'), [f"{ANYONE}send and receive"]),
    (zenoh('listen = ["tcp/192.0.2.1:7448"]', RULE), [CLAIMS]),
    (zenoh('connect = ["tcp/127.0.0.1:7448"]'), []),
    (zenoh('connect = ["tcp/192.0.2.1:7448"]'), [NO_RULES]),
    (zenoh('connect = ["tcp/192.0.2.1:7448"]', RULE), []),
    (zenoh("scouting = true"), [NO_RULES]),
    (zenoh("scouting = true", RULE), []),
    (zenoh('config = "zenoh.json5"'), [NO_RULES]),
    (zenoh('config = "zenoh.json5"', RULE), []),
    (zenoh('config = "zenoh.json5"', 'listen = ["tls/127.0.0.1:1"]', "connect = []", "scouting = false"), []),
    (zenoh('config = "zenoh.json5"', 'listen = ["tls/192.0.2.1:1"]'), [NO_RULES]),
    (someip('bind = "127.0.0.1"'), []),
    (someip('bind = "192.0.2.1"'), [NO_RULES]),
    (someip('bind = "192.0.2.1"', RULE), []),
    (mqtt('broker = "mqtt://127.0.0.1"'), []),
    (mqtt('broker = "mqtts://192.0.2.1"'), [NO_RULES]),
    (mqtt('broker = "mqtts://192.0.2.1"', RULE), []),
    (wamp('listen = "ws://127.0.0.1:8080"', "anonymous = true"), []),
    (
        wamp('listen = ["ws://127.0.0.1:8080", "ws://192.0.2.1:8081"]', "anonymous = true"),
        ["any host that reaches this address can subscribe without authentication"],
    ),
    (wamp('listen = "ws+unix:///run/wamp"', "anonymous = true"), []),
    (wamp('listen = "ws://192.0.2.1:8080"', 'users = [{ authid = "a", ticket = "t" }]'), []),
]


@pytest.mark.parametrize(("section", "expected"), CASES)
def test_what_other_machines_reach_without_authentication_or_rules_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, expected: list[str]
) -> None:
    zenoh_file(tmp_path, "")
    found = warnings(tmp_path, section, capsys)
    assert len(found) == len(expected), found
    for line, text in zip(found, expected, strict=True):
        assert text in line
