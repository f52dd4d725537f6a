# SPDX-License-Identifier: Apache-2.0
"""The other commands, as a user runs them."""

import json
import socket
from pathlib import Path

import pytest

from tests.e2e.rigs.streamer import run_command
from tests.e2e.rigs.vehicle import free_ports, write_config

BAD_CONFIG = 78


def tree(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


@pytest.mark.parametrize("arguments", [[], ["--offline"], ["--json"]], ids=["all", "offline", "json"])
def test_check_accepts_a_valid_configuration_and_touches_nothing(
    tmp_path: Path, arguments: list[str]
) -> None:
    config = write_config(tmp_path, free_ports())
    before = tree(tmp_path)
    checked = run_command("check", config, *arguments)
    assert checked.returncode == 0, checked.stderr
    assert checked.stderr == ""
    assert checked.stdout
    assert tree(tmp_path) == before


BAD_LINES = {
    "an unknown key": ('mode = "peer"', 'mood = "peer"', ("mood", "mode")),
    "an unknown transport": ('transport = "someip"', 'transport = "some-ip"', ("transport", "someip")),
    "a wrong type": ("sd = false", 'sd = "no"', ("sd",)),
    "a number out of range": ("service = 0x3001", "service = 0x13001", ("service",)),
    "an unknown plugin": ("[plugins.throttle]", "[plugins.trottle]", ("trottle", "throttle")),
    "a syntax error": ('bind = "127.0.0.1"', 'bind = "127.0.0.1', ()),
    "a bad address": ('bind = "127.0.0.1"', 'bind = "chassis.local"', ("bind", "chassis.local")),
}


@pytest.mark.parametrize(
    ("command", "mistake"),
    [*(("check", each) for each in BAD_LINES), ("run", "an unknown key"), ("run", "a syntax error")],
)
def test_an_invalid_configuration_is_refused_with_file_and_line(
    tmp_path: Path, command: str, mistake: str
) -> None:
    good, bad, named = BAD_LINES[mistake]
    config = write_config(tmp_path, free_ports())
    text = config.read_text(encoding="utf-8")
    line = text[: text.index(good)].count("\n") + 1
    config.write_text(text.replace(good, bad, 1), encoding="utf-8")
    before = tree(tmp_path)
    refused = run_command(command, config)
    assert refused.returncode == BAD_CONFIG
    assert f"{config}:{line}" in refused.stderr, refused.stderr
    for word in named:
        assert word in refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stdout == ""
    assert tree(tmp_path) == before


def test_check_lists_every_problem_at_once(tmp_path: Path) -> None:
    config = write_config(tmp_path, free_ports())
    text = (
        config.read_text(encoding="utf-8")
        .replace("sd = false", 'sd = "no"')
        .replace("major = 1", "mayor = 1", 1)
    )
    config.write_text(text, encoding="utf-8")
    refused = run_command("check", config)
    lines = {number for number, line in enumerate(text.splitlines(), 1) if '"no"' in line or "mayor" in line}
    assert len(lines) == 2
    assert all(f"{config}:{number}" in refused.stderr for number in lines), refused.stderr


def test_check_of_a_missing_file_names_it(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.toml"
    refused = run_command("check", missing)
    assert refused.returncode == BAD_CONFIG
    assert str(missing) in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(("place", "kind"), [("someip", socket.SOCK_DGRAM), ("cloud", socket.SOCK_STREAM)])
def test_check_finds_a_port_in_use_unless_offline(
    tmp_path: Path, place: str, kind: socket.SocketKind
) -> None:
    ports = free_ports()
    config = write_config(tmp_path, ports)
    port = getattr(ports, place)
    with socket.socket(socket.AF_INET, kind) as user:
        user.bind(("127.0.0.1", port))
        if kind is socket.SOCK_STREAM:
            user.listen()
        refused = run_command("check", config)
        assert refused.returncode == BAD_CONFIG
        assert str(port) in refused.stderr
        assert run_command("check", config, "--offline").returncode == 0
    assert run_command("check", config).returncode == 0


def test_plugins_lists_the_installed_plugins() -> None:
    listed = run_command("plugins", "--json")
    assert listed.returncode == 0, listed.stderr
    found = {plugin["name"]: plugin for plugin in json.loads(listed.stdout)}
    assert {"usubscription", "throttle"} <= found.keys()
    assert "ustreamer_subscription_directory" in found["usubscription"]["hooks"]
    assert "ustreamer_services" in found["usubscription"]["hooks"]
    assert "ustreamer_filters" in found["throttle"]["hooks"]
    assert found["throttle"]["distribution"] == "ustreamer-throttle"
    assert all(plugin["version"] for plugin in found.values())


@pytest.mark.parametrize("arguments", [[], ["fly"]])
def test_an_invalid_command_line_is_a_usage_error(arguments: list[str]) -> None:
    refused = run_command(*arguments)
    assert refused.returncode == 2
    assert "usage: ustreamer" in refused.stderr
