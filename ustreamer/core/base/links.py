# SPDX-License-Identifier: Apache-2.0
"""Who can be reached: what the endpoints know of their links, by the authorities behind them."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from threading import Lock
from typing import Final, NamedTuple


class LinkState(NamedTuple):
    """Whether a link is up, and how often it has come up (0: never heard of)."""

    up: bool
    up_count: int


_UNKNOWN_LINK: Final = LinkState(up=True, up_count=0)


def _no_endpoint(authority: str) -> str | None:
    return None


class LinkStates:
    """Whether authorities can be reached, as far as their endpoints know; what nobody knows about counts as up (X-15).

    Who keeps the `times_up` it has seen notices also an outage that was over before it looked.
    """

    def __init__(self, endpoint_of: Callable[[str], str | None] = _no_endpoint) -> None:
        """`endpoint_of` gives the name of the endpoint behind which an authority lives, or None."""
        self._endpoint_of = endpoint_of
        self._lock = Lock()
        self._links: dict[str, LinkState] = {}
        self._watchers: tuple[Callable[[], None], ...] = ()

    def state_of(self, authority: str) -> LinkState:
        """The link to `authority` at this moment. Safe from any thread, and cheap."""
        endpoint = self._endpoint_of(authority)
        return _UNKNOWN_LINK if endpoint is None else self._links.get(endpoint, _UNKNOWN_LINK)

    def state_of_endpoint(self, endpoint: str) -> LinkState:
        """The link to everybody behind an endpoint."""
        return self._links.get(endpoint, _UNKNOWN_LINK)

    def set_state(self, endpoint: str, *, up: bool) -> None:
        """The link of an endpoint came up or was lost; to be lost twice is no news. Safe from any thread.

        One that is up may come up again: somebody has joined, or come back before anybody noticed that it had gone.
        All watchers are called; what one of them raises is raised when all have been.
        """
        with self._lock:
            previous = self._links.get(endpoint)
            if previous is not None and not previous.up and not up:
                return
            up_count = 0 if previous is None else previous.up_count
            self._links[endpoint] = LinkState(up, up_count + up)
            watchers = self._watchers
        _call_watchers(watchers)

    def on_peer_joined(self, endpoint: str) -> None:
        """Somebody at an endpoint whose link is up has become ready: as if the link had come up again.

        Zenoh connects two nodes before either knows what the other listens to. Who sends when the link comes up may be too
        early, and is told here that it is time.
        """
        with self._lock:
            previous = self.state_of_endpoint(endpoint)
            if not previous.up:
                return
            self._links[endpoint] = LinkState(True, previous.up_count + 1)
            watchers = self._watchers
        _call_watchers(watchers)

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after every change, on the thread that noticed it: it must be quick."""
        with self._lock:
            self._watchers = (*self._watchers, changed)


def _call_watchers(watchers: Iterable[Callable[[], None]]) -> None:
    """Without a lock: a watcher may ask, and watch."""
    with ExitStack() as calls:  # which calls the last first, and all whatever one raises
        for changed in reversed(tuple(watchers)):
            calls.callback(changed)
