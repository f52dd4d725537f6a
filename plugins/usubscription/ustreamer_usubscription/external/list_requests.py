# SPDX-License-Identifier: Apache-2.0
"""The requests for the pages of a list: which answer counts, and how long the other process takes for one."""

from collections import OrderedDict
from typing import Final

import msgspec

from ustreamer.uprotocol.uuid import UUID

MAX_OPEN: Final = 64
"""Requests that are remembered: with two each 0.5 s, an answer counts for 16 s."""
MAX_ANSWER_NS: Final = 5_000_000_000


class _Request(msgspec.Struct, frozen=True):
    version: int
    page: int
    sent_ns: int


class ListRequests:
    """Belongs to one thread. A page may be requested several times; its first answer counts, also a late one."""

    def __init__(self) -> None:
        self._open: OrderedDict[UUID, _Request] = OrderedDict()
        self._page = 0
        self._answered_ns = 0
        self._answer_ns = 0
        self.is_awaiting = False
        """Whether a page has been requested that has no answer yet."""

    def add(self, id: UUID, version: int, now_ns: int) -> None:
        """The awaited page was requested."""
        self._open[id] = _Request(version, self._page, now_ns)
        self.is_awaiting = True
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

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
            # It answers one after the other. So after a pause of the whole process the next answers come at once.
            self._answer_ns = min(now_ns - max(request.sent_ns, self._answered_ns), MAX_ANSWER_NS)
            self._answered_ns = now_ns

    def end_page(self) -> None:
        """Answers to the requests so far do not count any more."""
        self._page += 1
        self.is_awaiting = False

    @property
    def pause_ns(self) -> int:
        """The time to the next request, in which the process can answer two."""
        return 2 * self._answer_ns
