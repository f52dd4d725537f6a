# SPDX-License-Identifier: Apache-2.0
"""Which stores of a streamer accept writes. Refusals and successes in; states for operators, and log lines, out."""

import logging
from threading import Lock

import msgspec

from ustreamer.core.base.log_limit import limited

log = logging.getLogger("ustreamer.storage")


class StoreState(msgspec.Struct, frozen=True):
    """Writes that were refused so far. `degraded` is the reason of the last one; empty after a write that succeeded."""

    refused: int = 0
    degraded: str = ""


class StoreStates:
    """The stores that refused a write since the start, by their path. From any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._states: dict[str, StoreState] = {}

    def on_refused(self, store: str, reason: str) -> None:
        """Record that the disk refused a write. The first refusal after a success is logged."""
        with self._lock:
            before = self._states.get(store, StoreState())
            self._states[store] = StoreState(before.refused + 1, reason)
        if not before.degraded:
            log.error("storage.degraded", extra={"store": store, "reason": reason, **limited(store)})

    def on_written(self, store: str) -> None:
        """Record that the disk accepted a write. The first one after a refusal is logged."""
        with self._lock:
            before = self._states.get(store, StoreState())
            if not before.degraded:
                return
            self._states[store] = StoreState(before.refused)
        log.info("storage.recovered", extra={"store": store, "refused": before.refused, **limited(store)})

    def snapshot(self) -> dict[str, StoreState]:
        """The state of each store that refused a write."""
        with self._lock:
            return dict(self._states)
