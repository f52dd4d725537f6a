# SPDX-License-Identifier: Apache-2.0
"""The requests for the pages of a list: when to repeat one, which answer counts, how long the other process takes.

A process may answer one request after the other, and need seconds for each. So a request is not repeated within a
second, and the pauses between repetitions grow: two requests in a version wait after 3 s, and not six. After a quick
answer it is likely that a process without one has gone. So it is soon requested again.

A request is valid until the next one. Where a network knows no listener, it waits at the endpoint, and the
process gets it as it returns.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from ustreamer.uprotocol.uuid import UUID

MAX_OPEN: Final = 64
"""Requests that are remembered."""
MAX_ANSWER_NS: Final = 5_000_000_000
"""Bound of the measured response time."""
TTL_NS: Final = 1_000_000_000
"""The shortest ttl of a request, and the time in which it is not repeated; not after a quick answer."""
FIRST_PAUSE_NS: Final = 500_000_000
"""The pause after the first request. A process is quick if its response time is shorter."""
QUICK_PAUSE_NS: Final = 1_000_000_000
"""The longest pause between repetitions after a quick answer."""
MAX_PAUSE_NS: Final = 2_000_000_000
"""The longest one otherwise. In the 5 s of MAX_ANSWER_NS, longer ones would not save a request."""


class _Request(msgspec.Struct, frozen=True):
    version: int
    page: int
    sent_ns: int


class ListRequests:
    """Belongs to one thread. A page may be requested several times; its first answer counts, also a late one."""

    def __init__(self) -> None:
        self._open: OrderedDict[UUID, _Request] = OrderedDict()
        self._page = 0
        self._last_answer_ns = 0
        self._response_time_ns = 0
        self._longest_ns = (0, 0)  # response times of the last list and of this one
        self._answered_version = 0
        self.is_awaiting = False
        """Whether a page has been requested that has no answer yet."""

    def add(self, id: UUID, version: int, now_ns: int) -> None:
        """The awaited page was requested."""
        self._open[id] = _Request(version, self._page, now_ns)
        self.is_awaiting = True
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

    def is_outstanding(self, version: int, now_ns: int) -> bool:
        """Whether the awaited page has been requested in `version` so lately that the answer may follow.

        False if the process is quick: its answer would be there.
        """
        if self._is_quick:
            return False
        sent_ns = [
            each.sent_ns for each in self._open.values() if (each.version, each.page) == (version, self._page)
        ]
        return bool(sent_ns) and now_ns - sent_ns[-1] < TTL_NS

    def version_of(self, id: UUID | None) -> int | None:
        """The version of a request for the awaited page; None for any other."""
        request = None if id is None else self._open.get(id)
        return None if request is None or request.page != self._page else request.version

    def is_awaiting_other(self, version: int) -> bool:
        """Whether the awaited page has been requested in another version, too."""
        return any(each.page == self._page and each.version != version for each in self._open.values())

    def remove(self, id: UUID | None) -> None:
        """The request was not delivered, or does not count."""
        if id is not None:
            self._open.pop(id, None)

    def on_answer(self, id: UUID | None, now_ns: int) -> None:
        """The process has answered a request, which may be an earlier one."""
        request = None if id is None else self._open.pop(id, None)
        if request is not None:
            earlier = [
                earlier_id
                for earlier_id, each in self._open.items()
                if each.version == request.version and each.sent_ns < request.sent_ns
            ]
            for earlier_id in earlier:  # they are lost: it answers in order
                del self._open[earlier_id]
            self._answered_version = request.version
            # It answers one after the other. So after a pause of the whole process the next answers come at once.
            self._response_time_ns = min(now_ns - max(request.sent_ns, self._last_answer_ns), MAX_ANSWER_NS)
            self._last_answer_ns = now_ns
            last_ns, this_ns = self._longest_ns
            self._longest_ns = last_ns, max(this_ns, self._response_time_ns)

    def begin_list(self) -> None:
        """The next answer is of the first page. A quick first page does not show how long a later one takes."""
        self._longest_ns = self._longest_ns[1], 0

    def end_page(self) -> None:
        """Answers to the requests so far do not count any more."""
        self._page += 1
        self.is_awaiting = False

    def pause_ns(self, unanswered: int) -> int:
        """The time from a request to the next one, after `unanswered` ones. The process can answer two in it."""
        longest_ns = QUICK_PAUSE_NS if self._is_quick else MAX_PAUSE_NS
        return max(min(FIRST_PAUSE_NS << min(unanswered, 8), longest_ns), 2 * max(self._longest_ns))

    def ttl_ns(self, pause_ns: int) -> int:
        """The ttl of a request that is followed by another one after `pause_ns`.

        After a quick answer, a process that returns gets one request and not two.
        """
        return pause_ns if self._is_quick else max(pause_ns, TTL_NS)

    @property
    def _is_quick(self) -> bool:
        return self._answered_version != 0 and self._response_time_ns < FIRST_PAUSE_NS

    @property
    def rest_ns(self) -> int:
        """The time from an answer to the next request, in which the process can answer the earlier requests."""
        waiting = sum(each.version == self._answered_version for each in self._open.values())
        return min(max(1, waiting) * self._response_time_ns, 2 * MAX_ANSWER_NS)
