# SPDX-License-Identifier: Apache-2.0
"""Waiting for other threads, for all tests of the host."""

from collections.abc import Callable

from tests.waiting import DEADLINE_S, wait_until

__all__ = ["DEADLINE_S", "eventually"]


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until `holds` is true, at most for the deadline."""
    wait_until(holds, what)
