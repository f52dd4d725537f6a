# SPDX-License-Identifier: Apache-2.0
"""`someip-tp` of a vsomeip service by itself; tests/host/importers/test_vsomeip.py has it in a file."""

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
def test_what_is_carried_over_is_what_we_send(offered: bool, found: dict[int, object], other: str) -> None:
    told: list[tuple[str, str]] = []
    assert tp_by_message_id("services[0]", BOTH, offered, number, lambda *each: told.append(each)) == found
    assert told == [(f"services[0].{other}", "received segments are always reassembled")]


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ([], "services[0]"),
        ({"service-to-client": {}}, "services[0].service-to-client"),
        ({"service-to-client": ["many"]}, "services[0].service-to-client[0]"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(raw: object, place: str) -> None:
    told: list[str] = []
    assert tp_by_message_id("services[0]", raw, True, number, lambda where, why: told.append(where)) == {}
    assert told == [place]


def test_who_says_nothing_sends_nothing_in_segments() -> None:
    assert tp_by_message_id("services[0]", None, True, number, lambda *each: pytest.fail(str(each))) == {}
