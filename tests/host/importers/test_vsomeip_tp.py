# SPDX-License-Identifier: Apache-2.0
"""`someip-tp` of a vsomeip service alone; tests/host/importers/test_vsomeip.py has it in a file."""

import pytest

from ustreamer.host.importers.vsomeip.tp import tp_by_message_id


def number(value: object) -> int:
    return int(str(value), 0)


BOTH = {
    "service-to-client": ["0x8001", {"method": "0x8002", "max-segment-length": "512"}],
    "client-to-service": [{"method": 1, "separation-time": "20"}],
}


@pytest.mark.parametrize(
    ("offered", "found", "other"),
    [
        (True, {0x8001: True, 0x8002: {"segment_bytes": 512}}, "client-to-service"),
        (False, {1: {"separation_us": 20}}, "service-to-client"),
    ],
)
def test_imported_tp_settings_are_those_of_the_sent_direction(
    offered: bool, found: dict[int, object], other: str
) -> None:
    omissions: list[tuple[str, str]] = []
    assert (
        tp_by_message_id("services[0]", BOTH, offered, number, lambda *each: omissions.append(each)) == found
    )
    assert omissions == [(f"services[0].{other}", "received segments are always reassembled")]


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ([], "services[0]"),
        ({"service-to-client": {}}, "services[0].service-to-client"),
        ({"service-to-client": ["many"]}, "services[0].service-to-client[0]"),
    ],
)
def test_an_invalid_value_is_reported_with_its_place(raw: object, place: str) -> None:
    omissions: list[str] = []
    assert (
        tp_by_message_id("services[0]", raw, True, number, lambda where, why: omissions.append(where)) == {}
    )
    assert omissions == [place]


def test_without_tp_settings_no_message_is_segmented() -> None:
    assert tp_by_message_id("services[0]", None, True, number, lambda *each: pytest.fail(str(each))) == {}
