# SPDX-License-Identifier: Apache-2.0
"""Recent problems of a streamer, as values. The running streamer remembers them; `evidence` adds all else on request."""

from collections.abc import Mapping

import msgspec

from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri


class RecentLetters(msgspec.Struct, frozen=True):
    """The dead letters of one source, sink, endpoint and code. `reason` and `attempts` are those of the last one."""

    source: UUri
    sink: UUri | None
    endpoint: str
    code: UCode
    reason: str
    ingress: str
    attempts: int
    count: int
    first_ms: int
    last_ms: int


class RecentLogLine(msgspec.Struct, frozen=True):
    """A warning or an error of the log. `fields` are cut to some hundred characters."""

    time_ms: int
    level: str
    event: str
    fields: Mapping[str, str]
