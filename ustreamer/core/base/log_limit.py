# SPDX-License-Identifier: Apache-2.0
"""Marks a log line that a remote host can cause as often as it likes.

In: what the line is about, such as a peer. Out: a field for `extra`. The host's log handler writes such lines at a
limited rate, counts those that it leaves out, and removes the field (`host/runtime/log_limiter.py`).

    log.info("someip.rebooted", extra={"peer": host, **limited(host)})
"""

from typing import Final

LIMITED: Final = "limited"
"""The name of the field."""


def limited(*about: object) -> dict[str, tuple[object, ...]]:
    """The field that limits a line: lines of one event with equal `about` are limited together."""
    return {LIMITED: about}
