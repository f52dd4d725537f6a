# SPDX-License-Identifier: Apache-2.0
"""Every reason for which something of service discovery is refused: labels of counters."""

from typing import Final

from ustreamer.transports.someip.sd.actions import Refusal
from ustreamer.transports.someip.sd.codec import EntryProblem, MalformedReason

SERVICE: Final = "sd_service"
"""A SOME/IP message that came to service discovery's port and is none of its."""

REASONS: Final = (*map(str, Refusal), *map(str, MalformedReason), *map(str, EntryProblem), SERVICE)
