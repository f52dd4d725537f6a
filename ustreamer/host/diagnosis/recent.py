# SPDX-License-Identifier: Apache-2.0
"""Recent problems of a streamer, as values. The running streamer remembers them; `evidence` adds all else on request."""

from collections.abc import Mapping

import msgspec

from ustreamer.core.base.recent_failures import CURRENT_MS
from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri


class RecentLetters(msgspec.Struct, frozen=True):
    """The dead letters of one source, sink, endpoint and code. `reason` and `attempts` are those of the last one.

    `count` and the times are those of the latest series: a minute without a letter ends it. `total` is the number since
    the start. `ages_ms` are the least and the largest age of the messages of the series, by the times in their ids.
    """

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
    total: int
    ages_ms: tuple[int, int] = (0, 0)

    def with_letter(self, letter: DeadLetter) -> "RecentLetters":
        """A copy that counts one more letter of the same kind."""
        now_ms = letter.last_attempt_ms
        continues = self.count and now_ms - self.last_ms <= CURRENT_MS
        age_ms = now_ms - letter.message.id.time_ms
        least_ms, most_ms = self.ages_ms if continues else (age_ms, age_ms)
        return msgspec.structs.replace(
            self,
            reason=letter.status.message,
            ingress=letter.ingress,
            attempts=letter.attempts,
            count=self.count + 1 if continues else 1,
            first_ms=self.first_ms if continues else now_ms,
            last_ms=now_ms,
            total=self.total + 1,
            ages_ms=(min(least_ms, age_ms), max(most_ms, age_ms)),
        )


class RecentLogLine(msgspec.Struct, frozen=True):
    """A warning or an error of the log. `fields` are cut to some hundred characters."""

    time_ms: int
    level: str
    event: str
    fields: Mapping[str, str]
