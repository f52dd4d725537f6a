# SPDX-License-Identifier: Apache-2.0
"""What streamers say that they put, as Zenoh liveliness tokens: ours, declared on a thread of its own, and those that are seen.

To declare a token may wait as long as a put, and there may be thousands; whoever makes a plan must not wait for that.
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
from ustreamer.transports.zenoh.token_keys import advertisement_key

log = logging.getLogger("ustreamer.zenoh")

MAX_ADVERTISEMENTS: Final = 16_384
"""Kept of one network: what four streamers may say. What has no room is not known, so that both put it."""

_JOIN_S: Final = 5.0

AdvertisementWatcher = Callable[[frozenset[TopicAdvertisement], frozenset[TopicAdvertisement]], None]


class TopicTokens:
    """What one session says that it puts, and what it sees, itself included.

    Of what was seen, `crowded_out` had no room; of what we said, `undeclared` was refused by Zenoh.
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
        self._submitted: frozenset[TopicAdvertisement] = frozenset()  # to Zenoh, as far as it took it
        self._closing = False

    def watch_advertisements(self, on_change: AdvertisementWatcher) -> None:
        """Have `changed` called with what came and what went. Before `start`."""
        self._watchers.append(on_change)

    # --- ours -----------------------------------------------------------------------------------------------------------

    def start(self, session: zenoh.Session) -> None:
        """Be ready to say something."""
        self._session = session

    def advertise(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        """Say these from now on, and no others. Does not wait."""
        with self._condition:
            if self._session is None or self._closing:
                return
            self._desired = advertisements
            self._condition.notify()
            if self._thread is None and advertisements:
                name = f"zenoh {self._endpoint} puts"
                self._thread = Thread(target=self._run, args=(self._session,), name=name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Say nothing new, and take back by and by what is said: nobody counts on it once our name is taken back."""
        with self._condition:
            self._closing = True
            self._condition.notify()

    def close(self) -> None:
        """End the thread. May be repeated."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self, session: zenoh.Session) -> None:
        declared: dict[
            TopicAdvertisement, zenoh.LivelinessToken
        ] = {}  # each is taken back when it is let go, all of them at the end
        while (desired := self._wait_for_change()) is not None:
            # The new before the old: in between, a topic whose rate has changed has two words and not none.
            for each in desired - declared.keys():
                if self._closing:
                    return
                with self._log_refused():
                    declared[each] = session.liveliness().declare_token(advertisement_key(each))
            for each in declared.keys() - desired:
                with suppress(zenoh.ZError):  # the session has ended, and its tokens with it
                    declared.pop(each).undeclare()  # type: ignore[no-untyped-call]

    @contextmanager
    def _log_refused(self) -> Iterator[None]:
        """Zenoh may refuse a token; what is not announced, everybody puts."""
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
        """What to say, as soon as it is something else; None at the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._desired != self._submitted)
            self._submitted = self._desired
            return None if self._closing else self._desired

    # --- what is seen, on the thread that looks -------------------------------------------------------------------------

    def on_token(self, advertisement: TopicAdvertisement, *, is_present: bool) -> None:
        """A token came or went."""
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
        """Calls that tell each watcher what has changed since the last time; none if nothing has."""
        if not self._added and not self._removed:
            return []
        added, self._added = frozenset(self._added), set()
        removed, self._removed = frozenset(self._removed), set()
        return [partial(on_change, added, removed) for on_change in self._watchers]
