# SPDX-License-Identifier: Apache-2.0
"""Losses with one reason are one group, whatever ids the reasons have."""

import pytest
from ustreamer_pipeline.report.causes import cause_of


@pytest.mark.parametrize(
    ("reasons", "cause"),
    [
        (["queue full: 10 of 10", "queue full: 7 of 7"], "queue full: N of N"),
        (["no session 0x1F", "no session 0xFACE", "no session 0x12"], "no session N"),
        (["session 9f02 closed", "session 81A0 closed"], "session N closed"),
        (
            ["request 0190a6b2-7d1f-7000-8000-abcdefabcdef timed out", "request 0190a6b2-7d1f-7abc-face-0123456789ab timed out"],
            "request N timed out",
        ),
        (["no route to //chassis/1234/1/8001"], "no route to //chassis/N/N/N"),
        (["up://chassis/CAFE/FF/8A01: refused", "up://chassis/1/1/1: refused"], "up://chassis/N/N/N: refused"),
        (["up:/CAFE/1/8001: refused"], "up:/N/N/N: refused"),
        (["after 10ms", "after 200ms"], "after Nms"),
        (["the queue of vin17 is full"], "the queue of vinN is full"),
        (["too long for E2E profile P04"], "too long for E2E profile P04"),
        (["a dead face added a bad fade"], "a dead face added a bad fade"),
    ],
)  # fmt: skip
def test_ids_are_left_out(reasons: list[str], cause: str) -> None:
    assert {cause_of(reason) for reason in reasons} == {cause}
