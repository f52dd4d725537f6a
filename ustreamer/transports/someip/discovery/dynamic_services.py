# SPDX-License-Identifier: Apache-2.0
"""Services that stand in no `services` table and are looked for as soon as somebody subscribes or calls them.

The address says all that there is to know (up-l1/someip.adoc): service and instance in its ue_id, major in its version, and
an event is in the event group of its own number. Any method may be called.

Whatever is wanted is wanted for `idle_ms` at least, so that callers who come and go make no more Finds than one round for
each service in that time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import ClassVar, Final, NamedTuple

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.transports.someip.config import EventConfig, Protocol, ServiceConfig
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.config import DynamicServicesConfig
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import UUri

_NS_PER_MS: Final = 1_000_000
_FIRST_METHOD, _LAST_METHOD = 0x0001, 0x7FFF


class AnyMethod(Mapping[int, Address]):
    """Every method, called at one address."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def __getitem__(self, method: int) -> Address:
        if _FIRST_METHOD <= method <= _LAST_METHOD:
            return self._address
        raise KeyError(method)

    def __iter__(self) -> Iterator[int]:
        return iter(range(_FIRST_METHOD, _LAST_METHOD + 1))

    def __len__(self) -> int:
        return _LAST_METHOD


class DynamicService(ServiceConfig, frozen=True, kw_only=True):
    """What stands for the missing table: the events that are subscribed now, and any method."""

    any_method: ClassVar[bool] = True

    def uses_protocol(self, protocol: Protocol) -> bool:
        return self.protocol == protocol


class DynamicServiceChanges(NamedTuple):
    """What service discovery is to look for, each with the events that are subscribed now, and for what no longer."""

    wanted: list[DynamicService]
    released: list[ServiceKey]


class DynamicServices:
    """Who is wanted without being listed. `call` may be used by any thread, the rest belongs to the receiving one."""

    def __init__(
        self,
        authority: str,
        limits: DynamicServicesConfig,
        configured: Iterable[ServiceKey],
        monotonic_ns: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when `take_changes` has something to say that the receiving thread does not know of."""
        self._authority = authority
        self._limits = limits
        self._configured = frozenset(configured)
        self._monotonic_ns = monotonic_ns
        self._wake = wake
        self._lock = Lock()
        self._events: dict[ServiceKey, set[int]] = {}
        self._topics = 0
        self._idle: DeadlineQueue[ServiceKey] = DeadlineQueue()
        self._changed: dict[ServiceKey, None] = {}
        self._refused = 0
        self.over_tcp: set[ServiceKey] = set()
        """Those that were found to be offered over TCP alone."""

    # --- wishes ---------------------------------------------------------------------------------------------------------

    def request_for_method(self, method: UUri) -> None:
        """Have the service of `method` looked for, or kept. Raises as `subscribe`."""
        key = self._service_key(method)
        with self._lock:
            is_new = self._request_service(key)
        if is_new:
            self._wake()

    def request_for_topic(self, topic: UUri) -> ServiceKey:
        """Have the service of `topic` looked for, of which the event is wanted until `unsubscribe`.

        Raises UStatusError: INVALID_ARGUMENT for what no SOME/IP id can be, NOT_FOUND for a service that is listed,
        RESOURCE_EXHAUSTED where as many are wanted as may be.
        """
        key = self._service_key(topic)
        if not topic.is_topic:
            raise invalid_argument(f"topic {topic}: expected an event, 8000 to FFFE")
        with self._lock:
            if self._topics >= self._limits.topics:
                raise self._limit_error(f"{self._limits.topics} topics of unlisted services")
            self._request_service(key)
            self._events[key].add(topic.resource_id)
            self._topics += 1
            self._changed[key] = None
        return key

    def release_topic(self, topic: UUri) -> None:
        """The event is wanted no more; to be said once for each `subscribe`."""
        key = self._service_key(topic)
        with self._lock:
            self._events[key].remove(topic.resource_id)
            self._topics -= 1
            self._changed[key] = None
            self._extend_idle(key)

    def _service_key(self, ue: UUri) -> ServiceKey:
        pattern = ue.with_resource(0).wildcard()
        if pattern is not None:
            raise invalid_argument(
                f"{ue}: {pattern}: expected that of one service: it is not listed, so it is looked for"
            )
        if ue.ue_type == 0:
            raise invalid_argument(f"{ue}: expected a service id, 1 to FFFE, in the lower half of ue_id")
        if ue.ue_instance == 1:
            raise invalid_argument(f"{ue}: instance 1 is written as 0: {ue.ue_type:X}")
        key = ServiceKey(ue.ue_type, ue.ue_instance or 1, ue.ue_version_major)
        if key in self._configured:
            raise UStatusError(UCode.NOT_FOUND, f"{ue}: its service is configured, but not for this")
        return key

    def _request_service(self, key: ServiceKey) -> bool:
        is_new = key not in self._events
        if is_new:
            if len(self._events) >= self._limits.services:
                raise self._limit_error(f"{self._limits.services} unlisted services")
            self._events[key] = set()
            self._changed[key] = None
        self._extend_idle(key)
        return is_new

    def _extend_idle(self, key: ServiceKey) -> None:
        self._idle.schedule(key, self._monotonic_ns() + self._limits.idle_ms * _NS_PER_MS)

    def _limit_error(self, what: str) -> UStatusError:
        self._refused += 1
        return UStatusError(UCode.RESOURCE_EXHAUSTED, f"{what} are wanted at {self._authority!r}, the limit")

    def set_uses_tcp(self, key: ServiceKey, *, tcp: bool) -> None:
        """How a service was found, listed or not."""
        if tcp and key in self._events:
            self.over_tcp.add(key)
        else:
            self.over_tcp.discard(key)

    # --- what becomes of them -------------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """When `take_changes` has a service to release."""
        with self._lock:
            return self._idle.next_due

    def pop_changes(self) -> DynamicServiceChanges:
        """What has changed since it was asked last."""
        if not self._events:
            return _NO_CHANGES  # nearly always: this is asked in every round of the receiving thread
        with self._lock:
            released = self._release_idle()
            wanted = [self._service(key) for key in self._changed]
            self._changed = {}
        return DynamicServiceChanges(wanted, released)

    def _release_idle(self) -> list[ServiceKey]:
        released, now_ns = [], self._monotonic_ns()
        while (key := self._idle.pop_due(now_ns)) is not None:
            if self._events[key]:
                continue  # it stays for as long as somebody subscribes it
            del self._events[key]
            self._changed.pop(key, None)
            self.over_tcp.discard(key)
            released.append(key)
        return released

    def _service(self, key: ServiceKey) -> DynamicService:
        events = tuple(EventConfig(id) for id in sorted(self._events[key]))
        return DynamicService(service=key.service, instance=key.instance, major=key.major, events=events)

    def statistics(self) -> dict[str, int]:
        """`sd_dynamic_services` services that are wanted now, and `sd_dynamic_services_refused` for want of room."""
        return {"sd_dynamic_services": len(self._events), "sd_dynamic_services_refused": self._refused}


_NO_CHANGES: Final = DynamicServiceChanges([], [])
