# SPDX-License-Identifier: Apache-2.0
"""Units are found by the path of their member, through named types, arrays and unions."""

import msgspec
from ustreamer_payloads.plugin import PayloadsConfig
from ustreamer_payloads.units import units_of

CONFIG = """
{"topics": [{"topic": "//chassis/1234/1/8001", "type": "State"}], "types": {
    "Wheel": {"kind": "struct", "members": [{"name": "speed", "type": "f32", "unit": "m/s"}, {"name": "slip", "type": "u8"}]},
    "Extra": {"kind": "tlv", "members": [{"id": 1, "name": "odometer", "type": "u32", "unit": "km"}]},
    "State": {"kind": "struct", "members": [
        {"name": "wheels", "type": {"kind": "array", "of": "Wheel", "count": 4}},
        {"name": "levels", "type": {"kind": "array", "of": "u8", "count": 2}, "unit": "%"},
        {"name": "more", "type": {"kind": "union", "variants": [{"id": 1, "name": "extra", "type": "Extra"}]}}]}}}
"""


def test_units_are_found_by_path() -> None:
    config = msgspec.json.decode(CONFIG, type=PayloadsConfig)
    assert units_of(config.types, "State") == {
        "wheels[].speed": "m/s",
        "levels[]": "%",
        "more.extra.odometer": "km",
    }
    assert units_of(config.types, "u8") == {}
