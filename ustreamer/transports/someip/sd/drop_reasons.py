# SPDX-License-Identifier: Apache-2.0
"""Every reason for which something of service discovery is refused: labels of counters."""

from typing import Final

from ustreamer.transports.someip.sd.actions import SdRefusal
from ustreamer.transports.someip.sd.codec import EntryProblem, SdMalformedReason

NOT_DISCOVERY: Final = "sd_service"
"""A SOME/IP message that came to service discovery's port and is none of its."""

SD_DROP_REASONS: Final = (
    *map(str, SdRefusal),
    *map(str, SdMalformedReason),
    *map(str, EntryProblem),
    NOT_DISCOVERY,
)
