# SPDX-License-Identifier: Apache-2.0
"""Correlation of responses with requests. Pure: callers pass the time and poll for expired entries. No callbacks.

    uProtocol request -> SOME/IP    OutboundCall, by Request ID (client << 16 | session)           SIP-1 to SIP-4
    SOME/IP request -> uProtocol    InboundRequest, by the id of the generated UMessage            SIP-5, SIP-6

(SIP-n: up-spec, up-l1/someip.adoc, the rules about correlating requests and responses, in order.)
"""

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from threading import Lock
from typing import Generic, TypeVar

from msgspec import Struct

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MAX_SESSION, next_session
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class OutboundCall(Struct, frozen=True, gc=False):
    """A uProtocol request that was sent to a SOME/IP service. `request` has an empty payload.

    `no_response_expected`: the request was sent with REQUEST_NO_RETURN.
    """

    request: UMessage
    service: int
    method: int
    remote: Address
    no_response_expected: bool = False

    @property
    def callee(self) -> UUri:
        """The uEntity of the service."""
        sink = self.request.attributes.sink
        assert sink is not None  # a request
        return sink.with_resource(0)


class InboundRequest(Struct, frozen=True, gc=False):
    """A request of the SOME/IP client at `address`. `expects_response` is False for REQUEST_NO_RETURN."""

    service: int
    method: int
    client: int
    session: int
    interface_version: int
    address: Address
    expects_response: bool


class DeadlineTable(Generic[K, V]):
    """Open requests with deadlines (monotonic ns), at most `limit`. Not locked.

    `get` hides an entry from its deadline on. The entry stays until `pop_expired` returns it, once.
    """

    def __init__(
        self,
        limit: int,
        entry_name: str,
        group_of: Callable[[V], Hashable] | None = None,
        owner_of: Callable[[V], str] | None = None,
    ) -> None:
        """`entry_name` names the entries in the error of a full table. `remove_where` finds entries by `group_of`.

        No owner has more than half of the entries.
        """
        self._limit = limit
        self._share = max(1, limit // 2)
        self._entry_name = entry_name
        self._entries: dict[K, tuple[V, int, Hashable]] = {}  # with deadline and group
        self._owner_of = owner_of
        self._by_owner: dict[str, int] = {}
        self._group_of = group_of
        # An index, because a scan is too slow: a service that appears and disappears 500 times a second would
        # scan thousands of calls to other services each time.
        self._groups: dict[Hashable, dict[K, None]] = {}
        self._deadlines: DeadlineQueue[K] = DeadlineQueue()

    def add_entry(self, key: K, value: V, deadline_ns: int) -> None:
        """Add an entry under a free key. Raises UStatusError(RESOURCE_EXHAUSTED) at the limit, or that of its owner."""
        if len(self._entries) >= self._limit:
            raise UStatusError(
                UCode.RESOURCE_EXHAUSTED,
                f"{self._entry_name}: {self._limit} are open, the limit (max_pending)",
            )
        if self._owner_of is not None:
            owner = self._owner_of(value)
            owned = self._by_owner.get(owner, 0)
            if owned >= self._share:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED,
                    f"{self._entry_name}: {owned} of {owner} are open, its share of max_pending",
                )
            self._by_owner[owner] = owned + 1
        group = None
        if self._group_of is not None:
            group = self._group_of(value)
            self._groups.setdefault(group, {})[key] = None
        self._entries[key] = value, deadline_ns, group
        self._deadlines.schedule(key, deadline_ns)

    def get(self, key: K, now_ns: int) -> V | None:
        """The value of the entry; None if the entry is absent or expired."""
        entry = self._entries.get(key)
        return None if entry is None or entry[1] <= now_ns else entry[0]

    def deadline_ns(self, key: K) -> int:
        """The deadline of an existing entry."""
        return self._entries[key][1]

    def remove_entry(self, key: K) -> bool:
        """Remove an entry; returns whether it existed."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._deadlines.cancel(key)
        if self._owner_of is not None:
            owner = self._owner_of(entry[0])
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]
        if self._group_of is not None:
            keys = self._groups[entry[2]]
            del keys[key]
            if not keys:
                del self._groups[entry[2]]
        return True

    def pop_expired(self, now_ns: int) -> list[V]:
        """Remove the expired entries, in order of deadline."""
        return self._pop_values(self._deadlines.pop_all_due(now_ns))

    def remove_where(self, group: Hashable, predicate: Callable[[K, V], bool]) -> list[V]:
        """Remove the entries of a group that match `predicate`, in order of opening."""
        keys = [key for key in self._groups.get(group, ()) if predicate(key, self._entries[key][0])]
        return self._pop_values(keys)

    def _pop_values(self, keys: Sequence[K]) -> list[V]:
        values = [self._entries[key][0] for key in keys]
        for key in keys:
            self.remove_entry(key)
        return values

    def remove_all(self) -> list[V]:
        """Take out everything."""
        values = [value for value, _, _ in self._entries.values()]
        self._entries.clear()
        self._by_owner.clear()
        self._groups.clear()
        self._deadlines = DeadlineQueue()
        return values

    @property
    def next_deadline_ns(self) -> int | None:
        """When the next entry is due; None if none is open."""
        return self._deadlines.next_due

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)


class PendingCalls:
    """The open requests of one endpoint, both directions, under one lock. Every reader and writer holds `lock`."""

    def __init__(self, limit: int, bridged: frozenset[str] = frozenset()) -> None:
        """At most `limit` are open in each direction. One host has at most half of the inbound requests, and one
        authority half of the calls.

        `bridged` are the authorities of other SOME/IP networks. Their calls keep the session ids of their requests.
        """
        self._bridged = bridged
        self.lock = Lock()
        self.accepts_calls = True
        self.calls: DeadlineTable[int, OutboundCall] = DeadlineTable(
            limit,
            "requests to SOME/IP services",
            attrgetter("remote"),
            attrgetter("request.attributes.source.authority_name"),
        )
        self.requests: DeadlineTable[UUID, InboundRequest] = DeadlineTable(
            limit, "requests of SOME/IP clients", None, lambda request: request.address[0]
        )
        self._session = 0

    # [impl->RPC-79, RPC-699, RPC-88, RPC-669, TP-762]
    def open_call(self, client: int, call: OutboundCall, deadline_ns: int) -> int:
        """Open a call of this client; returns its Request ID. Raises UStatusError(RESOURCE_EXHAUSTED) at the limit."""
        # One counter for all clients: one per client would be 65 536 counters that clients choose. The loop ends
        # because max_pending is less than the number of sessions.
        session = next_session(self._session)
        if self._bridged and call.request.attributes.source.authority_name in self._bridged:
            session = call.request.id.lsb & MAX_SESSION
        while (request_id := client << 16 | session) in self.calls:
            session = next_session(session)
        self.calls.add_entry(request_id, call, deadline_ns)
        self._session = session
        return request_id
