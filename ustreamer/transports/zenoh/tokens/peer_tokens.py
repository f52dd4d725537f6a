# SPDX-License-Identifier: Apache-2.0
"""Announcements of peer streamers as Zenoh liveliness tokens: no traffic, and removed with the declaring session.

In: our announcements, and the tokens of the network. Out: tokens, and watcher calls with all present announcements.

The tokens of a closed or killed session disappear at once, those of a frozen or cut-off session after its lease (10 s).

Tokens are not authenticated: any node of the network can declare any token. `ustreamer.core.peers.election` bounds the
effect of a token, and Zenoh's access control can restrict their declaration.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from queue import Empty, Queue
from threading import Event, Lock, Thread
from typing import Final

import zenoh
from zenoh.handlers import Callback

from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.core.peers.election import Announcement, AnnouncementRole
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.transports.zenoh.errors import zenoh_error_text
from ustreamer.transports.zenoh.tokens.token_keys import PREFIX, announcement_key, parse_token
from ustreamer.transports.zenoh.tokens.topic_tokens import TopicTokens
from ustreamer.uprotocol.ustatus import UCode, UStatusError

log = logging.getLogger("ustreamer.zenoh")

MAX_ANNOUNCEMENTS: Final = 4096
"""Limit per network; an honest streamer declares one per authority of its configuration, plus one."""

_QUEUE_TOKENS: Final = 4096
"""Tokens that wait for the token thread; when the queue is full, Zenoh stops reading from that link."""
_NOTIFY_INTERVAL_S: Final = 0.02
"""Minimum time after a notification of announcements.

Each rebuilds all routes, and a hostile node may change its tokens all the time.
"""
_TOPIC_INTERVAL_S: Final = 0.005
"""Minimum time after a notification of topic advertisements, which rebuilds the routes of these topics."""
_JOIN_S: Final = 5.0


class PeerTokens:
    """Our announcements and those of peers. Counts invalid tokens as `refused`, excess tokens as `over_limit`."""

    def __init__(self, endpoint: str, trusted_authorities: Collection[str] = ()) -> None:
        self.refused = 0
        self.over_limit = 0
        self.topic_tokens = TopicTokens(endpoint)
        self._endpoint = endpoint
        self._trusted_authorities = frozenset(trusted_authorities)
        self._watchers: list[Callable[[frozenset[Announcement]], None]] = []
        self._present: dict[Announcement, None] = {}
        self._reported: set[type[BaseException]] = set()
        self._session: zenoh.Session | None = None
        self._lock = Lock()
        self._declared: dict[Announcement, zenoh.LivelinessToken] = {}
        self._subscriber: zenoh.Subscriber[None] | None = None
        # Not a channel of Zenoh: its `recv` wakes up ten times a second.
        self._samples: Queue[zenoh.Sample | None] = Queue(_QUEUE_TOKENS)
        self._thread: Thread | None = None
        self._closing = Event()

    def watch_announcements(self, on_change: Callable[[frozenset[Announcement]], None]) -> None:
        """Call `on_change` after every change with all announcements, our own included. Call before `start`."""
        self._watchers.append(on_change)

    def start(self, session: zenoh.Session) -> None:
        """Subscribe to tokens if there is a watcher, and allow announcements."""
        self._session = session
        self.topic_tokens.start(session)
        if not self._watchers:
            return
        self._subscriber = session.liveliness().declare_subscriber(
            f"{PREFIX}/**", Callback(self._on_sample, indirect=False), history=True
        )
        name = f"zenoh {self._endpoint} peers"
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def announce(self, announcements: frozenset[Announcement]) -> None:
        """Replace our announcements. UStatusError(UNAVAILABLE) if Zenoh refuses.

        Our identity is announced last and withdrawn first, so that no peer relies on an incomplete set.
        """
        with self._lock:
            for each in sorted(self._declared.keys() - announcements, key=_is_announced_last, reverse=True):
                with suppress(zenoh.ZError):  # the session and its tokens are gone
                    self._declared.pop(each).undeclare()  # type: ignore[no-untyped-call]
            if self._session is None:
                return
            for each in sorted(announcements - self._declared.keys(), key=_is_announced_last):
                try:
                    token = self._session.liveliness().declare_token(announcement_key(each))
                except zenoh.ZError as error:
                    place = f"endpoint {self._endpoint!r}: cannot announce {announcement_key(each)}"
                    text = f"{place}: {zenoh_error_text(error)}"
                    raise UStatusError(UCode.UNAVAILABLE, text) from error
                self._declared[each] = token

    def close(self) -> None:
        """Withdraw all announcements and end the threads. May be repeated."""
        self.announce(frozenset())
        self.topic_tokens.close()
        self._session = None
        self._closing.set()
        with suppress(Empty):  # a thread of Zenoh may wait for room, and the session waits for that thread
            while True:
                self._samples.get_nowait()
        self._samples.put(None)
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            subscriber.undeclare()  # type: ignore[no-untyped-call]
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _on_sample(self, sample: zenoh.Sample) -> None:
        """Called on a thread of Zenoh."""
        if not self._closing.is_set():
            self._samples.put(sample)

    # --- on the token thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_changed = True
        while not self._closing.wait(_NOTIFY_INTERVAL_S if is_changed else _TOPIC_INTERVAL_S):
            is_changed = False
            for sample in self._received_samples():
                is_changed |= sample is not None and self._on_token(sample)
            if is_changed:
                present = frozenset(self._present)
                for on_change in self._watchers:
                    self._notify(partial(on_change, present))
            for notify in self.topic_tokens.pending_notifications():
                self._notify(notify)

    def _received_samples(self) -> "list[zenoh.Sample | None]":
        """Wait for a sample; returns it and the others that have arrived. None wakes the thread to end it."""
        samples = [self._samples.get()]
        with suppress(Empty):
            while len(samples) < _QUEUE_TOKENS:
                samples.append(self._samples.get_nowait())
        return samples

    def _on_token(self, sample: zenoh.Sample) -> bool:
        """Apply a declared or removed token; True if the set of announcements changed."""
        try:
            announcement = parse_token(str(sample.key_expr), self._trusted_authorities)
        except UStatusError as error:
            self.refused += 1
            if self.refused == 1:
                log.warning(
                    "zenoh.refused_announcement", extra={"endpoint": self._endpoint, "why": error.message}
                )
            return False
        if isinstance(announcement, TopicAdvertisement):
            self.topic_tokens.on_token(announcement, is_present=sample.kind == zenoh.SampleKind.PUT)
            return False
        if sample.kind == zenoh.SampleKind.DELETE:
            return self._present.pop(announcement, self) is None  # the value of a present announcement
        if announcement in self._present:
            return False
        if len(self._present) >= MAX_ANNOUNCEMENTS:
            self.over_limit += 1
            if self.over_limit == 1:
                log.warning("zenoh.announcement_limit", extra={"endpoint": self._endpoint})
            return False
        self._present[announcement] = None
        return True

    def _notify(self, notify: Callable[[], None]) -> None:
        try:
            notify()
        # Foreign code must not end the token thread: logged once per type.
        except FOREIGN_ERRORS as error:
            if type(error) not in self._reported:
                self._reported.add(type(error))
                log.exception("zenoh.peer_watcher_failed", extra={"endpoint": self._endpoint})


def _is_announced_last(announcement: Announcement) -> bool:
    return announcement.role is AnnouncementRole.IDENTITY
