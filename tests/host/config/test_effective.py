# SPDX-License-Identifier: Apache-2.0
"""The configuration in force: every key, its value and the place that it comes from."""

import json
from pathlib import Path

import pytest

from tests.host.config.test_mistakes import VALID, installed
from ustreamer.host.cli.config_command import show_config
from ustreamer.host.cli.main import main
from ustreamer.host.config import config as configuration
from ustreamer.host.config.config import TomlDocument
from ustreamer.host.config.effective import effective_settings


def settings_of(text: str) -> dict[str, tuple[str, str]]:
    """Value and origin by key path."""
    document = TomlDocument(Path("/etc/ustreamer/vehicle.toml"), text)
    config = configuration.check(document, *installed())
    return {each.path: (each.value, each.origin) for each in effective_settings(document, config)}


def line_of(text: str) -> int:
    return VALID[: VALID.index(text)].count("\n") + 1


@pytest.mark.parametrize(
    ("path", "value", "origin"),
    [
        ("authority", '"hpc.vin1"', "line 1"),
        ("state_dir", '"/etc/ustreamer/state"', "line 2"),
        ("endpoints.backbone.retransmit_ms", "15000", f"line {line_of('retransmit_ms')}"),
        ("endpoints.backbone.queue", "1024", "default"),
        ("endpoints.backbone.access[0].source", '"//ivi.vin1/10/1/FFFF"', f"line {line_of('source')}"),
        ("endpoints.backbone.config", "none", "default"),
        ("endpoints.cloud.connect", "[]", "default"),
        ("endpoints.cloud.mode", '"peer"', "default"),
        ("endpoints.cloud.scouting", "false", "default"),
        ("endpoints.chassis.services[0].service", "0x1234", f"line {line_of('service = 0x1234')}"),
        ("endpoints.chassis.services[0].minor", "0", "default"),
        ("endpoints.chassis.sd.multicast", '"224.244.224.245"', f"line {line_of('multicast')}"),
        ("endpoints.chassis.sd.timings.ttl_offer_s", "3", "default"),
        ("egress.default.retry.first_ms", "100", f"line {line_of('retry')}"),
        ("egress.chassis.max_age_ms", "30000", f"line {line_of('max_age_ms')}, [egress.default]"),
        ("egress.cloud.spool_messages", "1000", f"line {line_of('spool_messages')}"),
        ("egress.chassis.spool_bytes", "256000000", "default"),
        ("dead_letters.bytes", "64000000", "default"),
        ("observe.top", "50", "line 6"),
        ("plugins.throttle.tolerance", "0.1", f"line {line_of('tolerance')}"),
        ("plugins.wamp.users[0].authid", '"dashboard"', f"line {line_of('authid')}"),
    ],
)
def test_a_setting_has_its_value_and_its_origin(path: str, value: str, origin: str) -> None:
    assert settings_of(VALID)[path] == (value, origin)


def test_a_password_is_not_shown() -> None:
    found = settings_of(VALID.replace('ticket = "x"', 'ticket = "open sesame"'))
    assert found["plugins.wamp.users[0].ticket"][0] == '"***"'
    assert "sesame" not in str(found)


def test_the_command_prints_one_setting_per_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vehicle.toml"
    path.write_text(VALID, encoding="utf-8")
    assert main(["config", "show", str(path), "--origin"]) == 0
    with_origin = capsys.readouterr().out.splitlines()
    assert show_config(path, origin=False, as_json=False) == 0
    plain = capsys.readouterr().out.splitlines()
    assert main(["config", "show", str(path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert plain == [f"{each['path']} = {each['value']}" for each in listed]
    assert [line.split("  # ")[0].rstrip() for line in with_origin] == plain
    assert with_origin[0].split("  # ")[1] == "line 1"
