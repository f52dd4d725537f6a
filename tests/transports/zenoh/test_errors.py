# SPDX-License-Identifier: Apache-2.0
"""Readable texts of Zenoh errors."""

import pytest
import zenoh

from ustreamer.transports.zenoh.errors import zenoh_error_text


@pytest.mark.parametrize(
    ("error_text", "shown"),
    [
        ("Can not connect at io/zenoh/src/net/runtime/orchestrator.rs:281.", "Can not connect"),
        ("one at a/b.rs:1.\n  two at c/d.rs:22", "one two"),
        ("look at the file", "look at the file"),
    ],
)
def test_zenoh_source_positions_are_removed_and_the_text_is_one_line(error_text: str, shown: str) -> None:
    assert zenoh_error_text(zenoh.ZError(error_text)) == shown
