# SPDX-License-Identifier: Apache-2.0
"""The states of stores that the disk refuses to write: counted, logged once each way, and cleared by a success."""

import logging

import pytest

from ustreamer.core.storage.store_states import StoreState, StoreStates


def test_a_refusal_degrades_a_store_until_a_write_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    states = StoreStates()
    with caplog.at_level(logging.INFO):
        states.on_written("/s/other")
        for reason in ("full", "still full"):
            states.on_refused("/s/one", reason)
        assert states.snapshot() == {"/s/one": StoreState(2, "still full")}
        for _ in range(2):
            states.on_written("/s/one")
    assert states.snapshot() == {"/s/one": StoreState(2, "")}
    assert [record.message for record in caplog.records] == ["storage.degraded", "storage.recovered"]


def test_a_store_that_is_refused_again_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    states = StoreStates()
    for _ in range(2):
        states.on_refused("/s/one", "full")
        states.on_written("/s/one")
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "storage.degraded",
        "storage.degraded",
    ]
