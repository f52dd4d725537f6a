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

from ustreamer.core.peers.topic_advertisements import Put
from ustreamer.transports.zenoh.errors import reason
from ustreamer.transports.zenoh.token_keys import put_key

log = logging.getLogger("ustreamer.zenoh")

MAX_PUTS: Final = 16_384
"""Kept of one network: what four streamers may say. What has no room is not known, so that both put it."""

_JOIN_S: Final = 5.0

Told = Callable[[frozenset[Put], frozenset[Put]], None]


class PutTokens:
    """What one session says that it puts, and what it sees, itself included.

    Of what was seen, `crowded_out` had no room; of what we said, `undeclared` was refused by Zenoh.
    """

    def __init__(self, endpoint: str) -> None:
        self.crowded_out = 0
        self.undeclared = 0
        self._endpoint = endpoint
        self._watchers: list[Told] = []
        self._seen: set[Put] = set()
        self._came: set[Put] = set()
        self._went: set[Put] = set()
        self._session: zenoh.Session | None = None
        self._thread: Thread | None = None
        self._changed = Condition()
        self._wanted: frozenset[Put] = frozenset()
        self._told: frozenset[Put] = frozenset()  # to Zenoh, as far as it took it
        self._closing = False

    def watch(self, changed: Told) -> None:
        """Have `changed` called with what came and what went. Before `start`."""
        self._watchers.append(changed)

    # --- ours -----------------------------------------------------------------------------------------------------------

    def start(self, session: zenoh.Session) -> None:
        """Be ready to say something."""
        self._session = session

    def announce(self, puts: frozenset[Put]) -> None:
        """Say these from now on, and no others. Does not wait."""
        with self._changed:
            if self._session is None or self._closing:
                return
            self._wanted = puts
            self._changed.notify()
            if self._thread is None and puts:
                name = f"zenoh {self._endpoint} puts"
                self._thread = Thread(target=self._run, args=(self._session,), name=name, daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Say nothing new, and take back by and by what is said: nobody counts on it once our name is taken back."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread. May be repeated."""
        self.end()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self, session: zenoh.Session) -> None:
        declared: dict[
            Put, zenoh.LivelinessToken
        ] = {}  # each is taken back when it is let go, all of them at the end
        while (wanted := self._wait()) is not None:
            # The new before the old: in between, a topic whose rate has changed has two words and not none.
            for each in wanted - declared.keys():
                if self._closing:
                    return
                with self._said_if_not():
                    declared[each] = session.liveliness().declare_token(put_key(each))
            for each in declared.keys() - wanted:
                with suppress(zenoh.ZError):  # the session has ended, and its tokens with it
                    declared.pop(each).undeclare()  # type: ignore[no-untyped-call]

    @contextmanager
    def _said_if_not(self) -> Iterator[None]:
        """Zenoh may refuse a token; what is not announced, everybody puts."""
        try:
            yield
        except zenoh.ZError as error:
            self.undeclared += 1
            if self.undeclared == 1 and not self._closing:
                log.warning("zenoh.cannot_announce", extra={"endpoint": self._endpoint, "why": reason(error)})

    def _wait(self) -> frozenset[Put] | None:
        """What to say, as soon as it is something else; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._wanted != self._told)
            self._told = self._wanted
            return None if self._closing else self._wanted

    # --- what is seen, on the thread that looks -------------------------------------------------------------------------

    def note(self, put: Put, *, there: bool) -> None:
        """A token came or went."""
        if not there:
            if put in self._seen:
                self._seen.discard(put)
                self._went.add(put)
                self._came.discard(put)
        elif put not in self._seen:
            if len(self._seen) >= MAX_PUTS:
                self.crowded_out += 1
                if self.crowded_out == 1:
                    log.warning("zenoh.too_many_puts", extra={"endpoint": self._endpoint})
                return
            self._seen.add(put)
            self._came.add(put)
            self._went.discard(put)

    def news(self) -> list[Callable[[], None]]:
        """Calls that tell each watcher what has changed since the last time; none if nothing has."""
        if not self._came and not self._went:
            return []
        came, self._came = frozenset(self._came), set()
        went, self._went = frozenset(self._went), set()
        return [partial(changed, came, went) for changed in self._watchers]
