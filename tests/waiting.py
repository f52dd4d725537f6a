# SPDX-License-Identifier: Apache-2.0
"""Waiting for other threads and processes, for all tests."""

from ustreamer.testing.waiting import DEADLINE_S, poll_interval_s, wait_until

__all__ = ["DEADLINE_S", "poll_interval_s", "wait_until"]
