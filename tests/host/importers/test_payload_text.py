# SPDX-License-Identifier: Apache-2.0
"""Payload types as TOML: what is written is read again as it was."""

import tomllib

import pytest

from ustreamer.host.importers.payload_text import payloads_toml

TYPES = {
    "Fix": {"kind": "struct", "members": [{"name": "latitude", "type": "f64", "unit": "°"}]},
    "Gear": {"kind": "enum", "of": "u8", "values": {"PARK": 0, 'a "quoted" name': 3}},
    "Speeds": {"kind": "array", "of": {"kind": "array", "of": "f32"}, "count": 4, "open": True},
}


@pytest.mark.parametrize(
    "topics", [{"//chassis/1234/1/8001": "Fix"}, {"//a/1/1/8001": {"kind": "array", "of": "u8"}}]
)
def test_what_is_written_is_read_again(topics: dict[str, object]) -> None:
    section = tomllib.loads(payloads_toml(TYPES, topics))["plugins"]["payloads"]
    assert section["types"] == TYPES
    assert {each["topic"]: each["type"] for each in section["topics"]} == topics


def test_without_topics_there_is_no_section() -> None:
    assert payloads_toml(TYPES, {}) == ""
