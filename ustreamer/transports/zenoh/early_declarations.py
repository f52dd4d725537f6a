# SPDX-License-Identifier: Apache-2.0
"""Declares the publishers of subscribed topics before their first message.

A declaration takes longer than a put (docs/performance.md). In: topics, from any thread. Out: publishers, on the
thread of the link monitor.
"""

from collections import OrderedDict
from contextlib import suppress
from threading import Lock
from typing import Final

import zenoh

from ustreamer.transports.zenoh.link_monitor import LinkMonitor
from ustreamer.transports.zenoh.route_publishers import RoutePublishers, ZenohRoute, route_of
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

_PUT_LOCK_S: Final = 0.025  # a sender may hold the lock for seconds


class EarlyDeclarations:
    """The subscribed topics whose publishers may not be declared yet."""

    def __init__(self, publishers: RoutePublishers, link_monitor: LinkMonitor, put_lock: Lock) -> None:
        """Each user of a publisher holds `put_lock`."""
        self._publishers = publishers
        self._link_monitor = link_monitor
        self._put_lock = put_lock
        self._lock = Lock()
        self._topics: OrderedDict[UUri, None] = OrderedDict()
        self._has_new_topics = False

    def __len__(self) -> int:
        return len(self._topics)

    def add_topic(self, topic: UUri) -> None:
        """Declare the publisher of `topic` soon. Does not wait.

        The declarations begin when no further topic has come for a tick, so that they slow down no Subscribe. Above the
        limit of publishers the topic is ignored: its first message declares it.
        """
        with self._lock:
            self._has_new_topics = True
            if len(self._topics) < self._publishers.limit:
                self._topics[topic] = None

    def on_tick(self) -> None:
        """Begin with the declarations, if there are any."""
        if self._topics and self._link_monitor.is_idle:  # else `_declare_next` may be among the tasks
            self._declare_next()

    def _declare_next(self) -> None:
        """Declare for one topic, then for the others after the waiting tasks of the monitor, until a new topic comes."""
        with self._lock:
            has_new_topics, self._has_new_topics = self._has_new_topics, False
            if has_new_topics or not self._topics:
                return
            topic, _ = self._topics.popitem(last=False)
        # With a closed session, the first message of the topic reports it.
        with suppress(UStatusError, zenoh.ZError):
            self._declare(UAttributes(type=UMessageType.PUBLISH, source=topic, priority=UPriority.CS1))
        self._link_monitor.run_on_monitor(self._declare_next)

    def _declare(self, attributes: UAttributes) -> None:
        route = route_of(attributes)
        if not self._is_wanted(route):
            return
        publisher = self._publishers.declare(attributes)
        # A put that waits for a stalled link holds the lock, and the monitor must detect the stall.
        if self._put_lock.acquire(timeout=_PUT_LOCK_S):
            try:
                if self._is_wanted(route):
                    self._publishers.add(publisher)
                    return
            finally:
                self._put_lock.release()
        publisher.undeclare()

    def _is_wanted(self, route: ZenohRoute) -> bool:
        # The other half is for topics that no Subscribe names.
        publishers = self._publishers
        return publishers.find(route) is None and len(publishers) < publishers.limit // 2
