# SPDX-License-Identifier: Apache-2.0
"""The reachability of authorities: link states of endpoints go in, states by authority and notifications go out."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from threading import Lock
from typing import Final, NamedTuple


class LinkState(NamedTuple):
    """Whether a link is up, and how often it has come up (0: no report yet)."""

    up: bool
    up_count: int


_UNKNOWN_LINK: Final = LinkState(up=True, up_count=0)


def _no_endpoint(authority: str) -> str | None:
    return None


class LinkStates:
    """Whether authorities are reachable, as far as their endpoints report it; unknown counts as up (X-15).

    A caller that remembers `up_count` also notices an outage that ended before the caller read the state.
    """

    def __init__(self, endpoint_of: Callable[[str], str | None] = _no_endpoint) -> None:
        """`endpoint_of` returns the name of the endpoint behind which an authority lives, or None."""
        self._endpoint_of = endpoint_of
        self._lock = Lock()
        self._links: dict[str, LinkState] = {}
        self._watchers: tuple[Callable[[], None], ...] = ()

    def state_of(self, authority: str) -> LinkState:
        """The present state of the link to `authority`. Safe from any thread, and cheap."""
        endpoint = self._endpoint_of(authority)
        return _UNKNOWN_LINK if endpoint is None else self._links.get(endpoint, _UNKNOWN_LINK)

    def has_endpoint(self, authority: str) -> bool:
        """Whether `authority` lives behind a configured endpoint; true where no configuration is known."""
        return self._endpoint_of is _no_endpoint or self._endpoint_of(authority) is not None

    def state_of_endpoint(self, endpoint: str) -> LinkState:
        """The present state of the link of an endpoint."""
        return self._links.get(endpoint, _UNKNOWN_LINK)

    def set_state(self, endpoint: str, *, up: bool) -> None:
        """Record that the link of an endpoint came up or was lost. Safe from any thread.

        A second loss in a row is ignored. A link that is up may come up again: a node joined, or returned before its
        loss was noticed. Every watcher is called; an exception of a watcher is raised after all calls.
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
        """Record that a peer at an endpoint whose link is up has become ready, as if the link had come up again.

        Zenoh connects two nodes before either knows the subscribers of the other. A message sent at link-up may be too
        early; this second notification comes in time.
        """
        with self._lock:
            previous = self.state_of_endpoint(endpoint)
            if not previous.up:
                return
            self._links[endpoint] = LinkState(True, previous.up_count + 1)
            watchers = self._watchers
        _call_watchers(watchers)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after every change, on the reporting thread. `changed` must be quick."""
        with self._lock:
            self._watchers = (*self._watchers, changed)


def _call_watchers(watchers: Iterable[Callable[[], None]]) -> None:
    """Call without a lock: a watcher may read states and add watchers."""
    with ExitStack() as calls:  # calls the last one first, and all of them even if one raises
        for changed in reversed(tuple(watchers)):
            calls.callback(changed)
