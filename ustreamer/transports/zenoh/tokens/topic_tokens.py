# SPDX-License-Identifier: Apache-2.0
"""Topic advertisements of streamers as Zenoh liveliness tokens: ours, and those of peers.

In: the set of topics that we forward, and tokens of the network. Out: tokens, and watcher calls with each change.

Our tokens are declared on a thread of their own: a declaration can wait as long as a put, there can be thousands, and
the thread that builds a route must not wait for them.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Condition, Thread
from typing import Final

import zenoh

from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.transports.zenoh.errors import zenoh_error_text
from ustreamer.transports.zenoh.tokens.token_keys import advertisement_key

log = logging.getLogger("ustreamer.zenoh")

MAX_ADVERTISEMENTS: Final = 16_384
"""Limit per network: the advertisements of four streamers. Both streamers send a topic over the limit."""

_JOIN_S: Final = 5.0

AdvertisementWatcher = Callable[[frozenset[TopicAdvertisement], frozenset[TopicAdvertisement]], None]


class TopicTokens:
    """Our topic advertisements and all those that are visible, our own included.

    `over_limit` counts received advertisements over the limit, `failed` our advertisements that Zenoh refused.
    """

    def __init__(self, endpoint: str) -> None:
        self.over_limit = 0
        self.failed = 0
        self._endpoint = endpoint
        self._watchers: list[AdvertisementWatcher] = []
        self._seen: set[TopicAdvertisement] = set()
        self._added: set[TopicAdvertisement] = set()
        self._removed: set[TopicAdvertisement] = set()
        self._session: zenoh.Session | None = None
        self._thread: Thread | None = None
        self._condition = Condition()
        self._desired: frozenset[TopicAdvertisement] = frozenset()
        self._submitted: frozenset[TopicAdvertisement] = (
            frozenset()
        )  # passed to Zenoh, which may have refused some
        self._closing = False

    def watch_advertisements(self, on_change: AdvertisementWatcher) -> None:
        """Call `on_change` with the added and the removed advertisements. Call before `start`."""
        self._watchers.append(on_change)

    # --- our advertisements --------------------------------------------------------------------------------------

    def start(self, session: zenoh.Session) -> None:
        """Allow advertisements."""
        self._session = session

    def advertise(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        """Replace our advertisements. Does not wait."""
        with self._condition:
            if self._session is None or self._closing:
                return
            self._desired = advertisements
            self._condition.notify()
            if self._thread is None and advertisements:
                name = f"zenoh {self._endpoint} topics"
                self._thread = Thread(target=self._run, args=(self._session,), name=name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Advertise no new topic and withdraw the others gradually: peers ignore them without our identity."""
        with self._condition:
            self._closing = True
            self._condition.notify()

    def close(self) -> None:
        """End the thread. May be repeated."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self, session: zenoh.Session) -> None:
        # Zenoh withdraws a token when its object is freed; at the end of this method all are.
        declared: dict[TopicAdvertisement, zenoh.LivelinessToken] = {}
        while (desired := self._wait_for_change()) is not None:
            # New ones first: a topic with a changed rate then has two advertisements for a moment, and never none.
            for each in desired - declared.keys():
                if self._closing:
                    return
                with self._log_refused():
                    declared[each] = session.liveliness().declare_token(advertisement_key(each))
            for each in declared.keys() - desired:
                with suppress(zenoh.ZError):  # the session and its tokens are gone
                    declared.pop(each).undeclare()  # type: ignore[no-untyped-call]

    @contextmanager
    def _log_refused(self) -> Iterator[None]:
        """Count a token that Zenoh refuses. Every streamer sends a topic that is not advertised."""
        try:
            yield
        except zenoh.ZError as error:
            self.failed += 1
            if self.failed == 1 and not self._closing:
                log.warning(
                    "zenoh.advertisement_failed",
                    extra={"endpoint": self._endpoint, "why": zenoh_error_text(error)},
                )

    def _wait_for_change(self) -> frozenset[TopicAdvertisement] | None:
        """Wait for changed advertisements and return them; None at the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._desired != self._submitted)
            self._submitted = self._desired
            return None if self._closing else self._desired

    # --- received tokens, on the token thread -------------------------------------------------------------------------

    def on_token(self, advertisement: TopicAdvertisement, *, is_present: bool) -> None:
        """Apply a declared or removed token."""
        if not is_present:
            if advertisement in self._seen:
                self._seen.discard(advertisement)
                self._removed.add(advertisement)
                self._added.discard(advertisement)
        elif advertisement not in self._seen:
            if len(self._seen) >= MAX_ADVERTISEMENTS:
                self.over_limit += 1
                if self.over_limit == 1:
                    log.warning("zenoh.advertisement_limit", extra={"endpoint": self._endpoint})
                return
            self._seen.add(advertisement)
            self._added.add(advertisement)
            self._removed.discard(advertisement)

    def pending_notifications(self) -> list[Callable[[], None]]:
        """The watcher calls for all changes since the last call; empty without changes."""
        if not self._added and not self._removed:
            return []
        added, self._added = frozenset(self._added), set()
        removed, self._removed = frozenset(self._removed), set()
        return [partial(on_change, added, removed) for on_change in self._watchers]
