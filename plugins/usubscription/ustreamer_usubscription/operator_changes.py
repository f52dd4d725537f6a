# SPDX-License-Identifier: Apache-2.0
"""Changes at the request of an operator, with a running streamer or without: `ustreamer subscriptions rm | import`."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from ustreamer.core.storage.reader_table import DATA_FILE
from ustreamer.uprotocol.ustatus import UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.requests.requests import MAX_DETAILS, check_topic_resource
from ustreamer_usubscription.store.committer import Committer
from ustreamer_usubscription.store.store import SubscriptionStore
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

REASON: Final = "removed by an operator"
_MAP_SIZE: Final = UsubscriptionConfig().map_size_mb << 20
_MAX_INT: Final = (1 << 63) - 1


class OperatorChange(Protocol):
    """What an operator asks for."""

    def apply(self, state: ServiceState, transaction: Transaction) -> int:
        """Make the change in a transaction; return the number of changed subscriptions. Raises UStatusError."""
        ...


class RemovalPattern(NamedTuple):
    """The subscriptions to remove: patterns of their topics and of their subscribers."""

    topic: UUri
    subscriber: UUri

    def apply(self, state: ServiceState, transaction: Transaction) -> int:
        """Remove the matching subscriptions."""
        found = [
            entry
            for entry in state.directory
            if self.topic.matches(entry.topic) and self.subscriber.matches(entry.subscriber)
        ]
        for entry in found:
            transaction.remove_subscription(entry.pair, REASON)
        return len(found)


class SubscriptionText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription as JSON: a line of `ustreamer subscriptions export`. `status` is checked, not imported."""

    topic: str
    subscriber: str
    status: Literal["", "SUBSCRIBED", "SUBSCRIBE_PENDING"] = ""
    period_ns: Annotated[int, Meta(ge=0, le=_MAX_INT)] = 0
    expire_ms: Annotated[int, Meta(ge=-_MAX_INT, le=_MAX_INT)] | None = None
    details: Annotated[str, Meta(max_length=2 * MAX_DETAILS)] = ""
    version: Literal[3, 4] = 3

    def record(self) -> SubscriptionRecord:
        """The subscription. INVALID_ARGUMENT for an address that cannot be subscribed, or cannot subscribe."""
        topic, subscriber = UUri.parse(self.topic), UUri.parse(self.subscriber)
        for name, address in (("topic", topic), ("subscriber", subscriber)):
            if not address.authority_name or (part := address.wildcard()) is not None:
                wrong = "authority is empty" if not address.authority_name else f"{part} is a wildcard"
                raise invalid_argument(f"{name} {address}: its {wrong}, expected a specific one")
        check_topic_resource(topic)
        if subscriber.resource_id:
            raise invalid_argument(f"subscriber {subscriber}: expected resource 0, an entity")
        try:
            details = bytes.fromhex(self.details)
        except ValueError as error:
            raise invalid_argument(f"details {self.details!r}: expected hexadecimal digits") from error
        return SubscriptionRecord(topic, subscriber, self.period_ns, self.expire_ms, details, self.version)


class AddedSubscriptions(NamedTuple):
    """Subscriptions to add, or to change where the pair of topic and subscriber exists. Permissions do not apply."""

    records: tuple[SubscriptionRecord, ...]

    def apply(self, state: ServiceState, transaction: Transaction) -> int:
        """Add them all, but those that have ended. RESOURCE_EXHAUSTED at a limit: then none is added."""
        lasting = [record for record in self.records if not record.is_expired(transaction.earliest_ms)]
        for record in lasting:
            transaction.put_subscription(record)
        return len(lasting)


def change_of(request: Mapping[str, Any]) -> OperatorChange:
    """The change in `{"remove": {"topic": ..., "subscriber": ...}}` or `{"add": [...]}`. Raises INVALID_ARGUMENT."""
    match request:
        case {"add": list(texts), **others} if not others:
            try:
                found = msgspec.convert(texts, tuple[SubscriptionText, ...])
            except msgspec.ValidationError as error:
                raise invalid_argument(f"add: {error}") from error
            return AddedSubscriptions(tuple(each.record() for each in found))
        case {"remove": dict(wanted)} if wanted and wanted.keys() <= {"topic", "subscriber"}:
            topic, subscriber = (
                UUri.parse(str(wanted[name])) if name in wanted else ANY for name in ("topic", "subscriber")
            )
            return RemovalPattern(topic, subscriber)
    raise invalid_argument(
        f"request {str(request)[:200]}: expected remove with topic, subscriber or both, or add with subscriptions"
    )


class PendingChange:
    """A change, and the number of changed subscriptions as soon as that is on disk."""

    def __init__(self, change: OperatorChange) -> None:
        self.change = change
        self.done: Future[int] = Future()


class _EveryAuthority:
    """As if every topic were local: without the configuration it is unknown which ones are not."""

    def __contains__(self, authority: object) -> bool:
        return True


def change_store(path: Path, change: OperatorChange) -> int:
    """Make a change in a store that no streamer uses; a new one, if there is none. Raises as `SubscriptionStore.open`.

    A topic of another device that gets its first subscription, or loses its last one, is subscribed or unsubscribed
    there by the next start.
    """
    now_ms = time.time_ns() // 1_000_000  # noqa: TID251  # a command; nothing depends on the step of this clock
    config = UsubscriptionConfig()
    data = path / DATA_FILE
    size = max(_MAP_SIZE, data.stat().st_size * 2 if data.exists() else 0)
    store = SubscriptionStore(path, size, history=config.history, wall_ms=lambda: now_ms)
    try:
        store.open()
        directory = InMemoryDirectory()
        directory.load_stored(store.take_subscriptions())
        state = ServiceState(_EveryAuthority(), directory)
        transaction = Transaction(state, config, now_ms)
        changed = change.apply(state, transaction)
        failure = Committer(store, config.history).commit_transaction(transaction)
    finally:
        store.close()
    if failure is not None:
        raise UStatusError(failure.code, failure.message)
    return changed
