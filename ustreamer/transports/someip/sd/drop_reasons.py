# SPDX-License-Identifier: Apache-2.0
"""All reasons for which service discovery drops input: counter labels."""

from typing import Final

from ustreamer.transports.someip.sd.actions import SdRefusal
from ustreamer.transports.someip.sd.codec import EntryProblem, SdMalformedReason

NOT_DISCOVERY: Final = "sd_service"
"""A SOME/IP message at the service discovery port with the ids of another service."""

SD_DROP_REASONS: Final = (
    *map(str, SdRefusal),
    *map(str, SdMalformedReason),
    *map(str, EntryProblem),
    NOT_DISCOVERY,
)
