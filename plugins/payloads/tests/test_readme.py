# SPDX-License-Identifier: Apache-2.0
"""The configuration of the README is valid and behaves as documented."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from ustreamer_payloads.errors import PayloadError
from ustreamer_payloads.plugin import PayloadsConfig

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def examples() -> list[PayloadsConfig]:
    found = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    return [msgspec.convert(tomllib.loads(each)["plugins"]["payloads"], PayloadsConfig) for each in found]


def test_the_description_of_the_page_decodes_its_own_encoding() -> None:
    description = examples()[0].descriptions()["ChassisState"]
    state = {
        "wheels": [{"speed": 13.5, "slip": -1}] * 4,
        "gear": "drive",
        "lamps": {"low": True, "high": False, "level": 9},
        "warnings": [{"text": "Öl"}, {"code": 7}, None],
        "extras": {"driver": "Ada"},
    }
    payload = description.encode(state)
    assert description.decode(payload) == state
    assert description.decode(payload + b"\1\2\3") == state
    with pytest.raises(PayloadError, match="bytes, 10 are left"):
        description.decode(payload[:12])


def test_the_error_of_the_page_is_raised() -> None:
    [error_text] = re.findall(r"`(at byte .*?)`", PAGE, re.DOTALL)
    with pytest.raises(PayloadError) as refused:
        examples()[0].descriptions()["ChassisState"].decode(b"\0\x1c" + bytes(28))
    assert str(refused.value) == " ".join(error_text.split())


def test_a_class_can_replace_a_type() -> None:
    [topic] = examples()[1].topics
    assert (topic.type, topic.class_) == (None, "vehicle_payloads:WheelSpeed")
