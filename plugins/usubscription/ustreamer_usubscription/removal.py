# SPDX-License-Identifier: Apache-2.0
"""Removes subscriptions at the request of an operator: `ustreamer subscriptions rm`."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple

from ustreamer.core.storage.reader_table import DATA_FILE
from ustreamer.uprotocol.ustatus import UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.store.committer import Committer
from ustreamer_usubscription.store.store import SubscriptionStore
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

REASON: Final = "removed by an operator"
_MAP_SIZE: Final = UsubscriptionConfig().map_size_mb << 20


class RemovalPattern(NamedTuple):
    """The subscriptions to remove: patterns of their topics and of their subscribers."""

    topic: UUri
    subscriber: UUri

    @classmethod
    def from_request(cls, request: Mapping[str, Any]) -> "RemovalPattern":
        """The patterns in `{"remove": {"topic": ..., "subscriber": ...}}`. INVALID_ARGUMENT for anything else."""
        wanted = request.get("remove")
        if not isinstance(wanted, dict) or not wanted or not wanted.keys() <= {"topic", "subscriber"}:
            raise invalid_argument(f"request {request}: expected remove with topic, subscriber or both")
        topic, subscriber = (
            UUri.parse(str(wanted[name])) if name in wanted else ANY for name in ("topic", "subscriber")
        )
        return cls(topic, subscriber)


class _EveryAuthority:
    """As if every topic were local: without the configuration it is unknown which ones are not."""

    def __contains__(self, authority: object) -> bool:
        return True


class Removal:
    """A pattern, and the number of removed subscriptions as soon as that is on disk."""

    def __init__(self, pattern: RemovalPattern) -> None:
        self.pattern = pattern
        self.done: Future[int] = Future()


def remove_matching(pattern: RemovalPattern, state: ServiceState, transaction: Transaction) -> int:
    """Remove the matching subscriptions in a transaction; returns how many."""
    found = [
        entry
        for entry in state.directory
        if pattern.topic.matches(entry.topic) and pattern.subscriber.matches(entry.subscriber)
    ]
    for entry in found:
        transaction.remove_subscription(entry.pair, REASON)
    return len(found)


def remove_from_store(path: Path, pattern: RemovalPattern) -> int:
    """Remove subscriptions from a store that no streamer uses. Raises as `SubscriptionStore.open`.

    A topic of another device that loses its last subscription is unsubscribed there by the next start.
    """
    now_ms = time.time_ns() // 1_000_000  # noqa: TID251  # a command; nothing depends on the step of this clock
    config = UsubscriptionConfig()
    size = max(_MAP_SIZE, (path / DATA_FILE).stat().st_size * 2)
    store = SubscriptionStore(path, size, history=config.history, wall_ms=lambda: now_ms)
    try:
        store.open()
        directory = InMemoryDirectory()
        directory.load_stored(store.take_subscriptions())
        state = ServiceState(_EveryAuthority(), directory)
        transaction = Transaction(state, config, now_ms)
        removed = remove_matching(pattern, state, transaction)
        failure = Committer(store, config.history).commit_transaction(transaction)
    finally:
        store.close()
    if failure is not None:
        raise UStatusError(failure.code, failure.message)
    return removed
