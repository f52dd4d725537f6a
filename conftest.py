# SPDX-License-Identifier: Apache-2.0
"""For every test of every distribution."""

import gc
import signal

from hypothesis import HealthCheck, settings

gc.disable()  # until every test is collected

# A shell without job control starts background jobs with SIGINT ignored, and every process that a test starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Two busy cores may hold up any single example for longer than the 200 ms that hypothesis allows it, and all together for longer
# than the second that it allows their making.
settings.register_profile("ustreamer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ustreamer")


def pytest_collection_finish() -> None:
    """Nothing that was imported or collected is garbage. Each full collection would visit its million objects again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)  # the default of 700 doubles the time of collections
