# SPDX-License-Identifier: Apache-2.0
"""Services that are in no `services` table and are requested as soon as a client subscribes or calls them.

The address contains all necessary ids (up-l1/someip.adoc): service and instance in the ue_id, major in the version. An
event is in the event group of its own number. Any method may be called.

A request lasts at least `idle_ms`. Clients that come and go cause at most one round of Finds per service in that time.
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
    """Maps every method to one address."""

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
    """The substitute for a configured service: the subscribed events, and any method."""

    any_method: ClassVar[bool] = True

    def uses_protocol(self, protocol: Protocol) -> bool:
        return self.protocol == protocol


class DynamicServiceChanges(NamedTuple):
    """The services to request, each with its subscribed events, and the services to release."""

    wanted: list[DynamicService]
    released: list[ServiceKey]


class DynamicServices:
    """The requested dynamic services.

    Any thread may call `request_for_method`; the rest belongs to the receiving thread.
    """

    def __init__(
        self,
        authority: str,
        limits: DynamicServicesConfig,
        configured: Iterable[ServiceKey],
        monotonic_ns: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when `pop_changes` has a change that the receiving thread does not know."""
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
        """Services that are offered over TCP only."""

    # --- requests -----------------------------------------------------------------------------------------------------

    def request_for_method(self, method: UUri) -> None:
        """Request the service of `method`, or keep it requested. Raises as `request_for_topic`."""
        key = self._service_key(method)
        with self._lock:
            is_new = self._request_service(key)
        if is_new:
            self._wake()

    def request_for_topic(self, topic: UUri) -> ServiceKey:
        """Request the service of `topic` and its event until `release_topic`.

        Raises UStatusError: INVALID_ARGUMENT for an address that is no SOME/IP id, NOT_FOUND for a configured service,
        RESOURCE_EXHAUSTED at the limit of requested services or topics.
        """
        key = self._service_key(topic)
        if not topic.is_topic:
            raise invalid_argument(f"topic {topic}: expected an event, 8000 to FFFE")
        with self._lock:
            if self._topics >= self._limits.topics:
                raise self._limit_error(f"{self._limits.topics} topics of dynamic services")
            self._request_service(key)
            self._events[key].add(topic.resource_id)
            self._topics += 1
            self._changed[key] = None
        return key

    def release_topic(self, topic: UUri) -> None:
        """Release the event; call once for each `request_for_topic`."""
        key = self._service_key(topic)
        with self._lock:
            self._events[key].remove(topic.resource_id)
            self._topics -= 1
            self._changed[key] = None
            self._extend_idle(key)

    def _service_key(self, ue: UUri) -> ServiceKey:
        pattern = ue.with_resource(0).wildcard()
        if pattern is not None:
            text = f"{ue}: the {pattern} is a wildcard; a service that is not configured needs an exact {pattern}"
            raise invalid_argument(text)
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
                raise self._limit_error(f"{self._limits.services} dynamic services")
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
        """Store the transport protocol of a located service, configured or dynamic."""
        if tcp and key in self._events:
            self.over_tcp.add(key)
        else:
            self.over_tcp.discard(key)

    # --- changes ------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """The next time at which `pop_changes` releases a service."""
        with self._lock:
            return self._idle.next_due

    def pop_changes(self) -> DynamicServiceChanges:
        """Return the changes since the last call."""
        if not self._events:
            return _NO_CHANGES  # the usual case: called on every tick of the receiving thread
        with self._lock:
            released = self._release_idle()
            wanted = [self._service(key) for key in self._changed]
            self._changed = {}
        return DynamicServiceChanges(wanted, released)

    def _release_idle(self) -> list[ServiceKey]:
        released, now_ns = [], self._monotonic_ns()
        while (key := self._idle.pop_due(now_ns)) is not None:
            if self._events[key]:
                continue  # a subscribed service stays requested
            del self._events[key]
            self._changed.pop(key, None)
            self.over_tcp.discard(key)
            released.append(key)
        return released

    def _service(self, key: ServiceKey) -> DynamicService:
        events = tuple(EventConfig(id) for id in sorted(self._events[key]))
        return DynamicService(service=key.service, instance=key.instance, major=key.major, events=events)

    def statistics(self) -> dict[str, int]:
        """`sd_dynamic_services`: requested now. `sd_dynamic_services_refused`: refused at the limit."""
        return {"sd_dynamic_services": len(self._events), "sd_dynamic_services_refused": self._refused}


_NO_CHANGES: Final = DynamicServiceChanges([], [])
