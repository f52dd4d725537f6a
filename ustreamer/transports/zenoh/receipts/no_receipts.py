# SPDX-License-Identifier: Apache-2.0
"""An endpoint without receipts: no put waits for one. `MissingReceipts` is the other case, and has the docstrings.

A module of its own, so that such an endpoint does not import the others.
"""

from collections.abc import Hashable, Iterator, KeysView, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from ustreamer.transports.zenoh.route_publishers import RoutePublisher
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID

if TYPE_CHECKING:
    from ustreamer.transports.zenoh.receipts.awaited_receipts import Receiver

NEVER_NS: Final = 1 << 62


class NoReceipts:
    """No put waits for a receipt."""

    @property
    def oldest_ns(self) -> int:
        return NEVER_NS

    def awaiting_publishers(self) -> AbstractSet[Hashable]:
        return frozenset()

    def keep_overdue(self) -> None:
        pass

    def retransmit(self) -> None:
        pass

    def is_awaited(self, message: UMessage) -> bool:
        return False

    def received_of(self, ids: KeysView[bytes]) -> AbstractSet[bytes]:
        return ids

    def block(self, publisher: RoutePublisher, puts: Sequence[tuple[int, UMessage]]) -> None:
        pass

    def forget(self, ids: Sequence[bytes]) -> None:
        pass

    def stop_waiting(self, id: bytes) -> "list[Receiver]":
        return []

    def count_left(self, id: bytes, receivers: "Sequence[Receiver]") -> None:
        pass

    def on_put_again(self, id: bytes, put_ns: int, now_ns: int) -> None:
        pass

    def first_put_ns(self, id: bytes, put_ns: int) -> int:
        return put_ns

    def has_stored(self, publisher: RoutePublisher) -> bool:
        return False

    def stored_ids(self, publisher: RoutePublisher, known: AbstractSet[bytes]) -> list[bytes]:
        return []

    def stored_of(
        self, publisher: RoutePublisher, known: AbstractSet[bytes]
    ) -> Iterator[tuple[int, UMessage]]:
        return iter(())

    def stored_between(self, first_ns: int, last_ns: int) -> int:
        return 0

    def stored_times(self, id: bytes) -> set[int]:
        return set()

    def miss_left(self) -> set[UUID]:
        return set()

    def remembered(self) -> Iterator[tuple[int, RoutePublisher, UMessage]]:
        return iter(())

    def others(self, known: AbstractSet[UUID]) -> dict[UUID, int]:
        return {}
