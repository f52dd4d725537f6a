# SPDX-License-Identifier: Apache-2.0
"""The real clock. Only this module reads it."""

import time
from typing import Final

from ustreamer.core.base.clock import Clock


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


SYSTEM_CLOCK: Final = Clock(time.monotonic_ns, _wall_ms)
