# SPDX-License-Identifier: Apache-2.0
"""Calls in the other version of the interface, to devices that have not answered yet, or not the last call.

A call waits 5 minutes for its answer, and a device may listen at the methods of the other version only. So a second
after a call one copy of a pending call is sent in the other version, a probe. It is as valid as a call, and its answer
settles the version of the device. There is one probe for each device in 5 minutes, and none after an answer.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.base.links import LinkState
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

PROBE_DELAY_MS: Final = 1_000
"""An answer of a device that is there takes milliseconds."""

_NS_PER_MS: Final = 1_000_000


class VersionProbe(msgspec.Struct, frozen=True):
    """A copy of the call about `topic` to the device `authority`, in `version`."""

    reqid: UUID
    authority: str
    topic: UUri
    version: int


class _Silence(msgspec.Struct):
    """A called device that has not answered since its link came up `up_count` times; its probe once it is sent."""

    up_count: int
    probe: VersionProbe | None = None


class VersionProbes:
    """The probes of all devices, by authority. Belongs to one thread, except `find`."""

    def __init__(self, link_of: Callable[[str], LinkState], lifetime_ms: int) -> None:
        """`link_of` is the link state of an authority.

        A probe is followed by another one after `lifetime_ms`, or after the link came up again.
        """
        self._link_of = link_of
        self._lifetime_ns = lifetime_ms * _NS_PER_MS
        self._due: DeadlineQueue[str] = DeadlineQueue()
        self._silent: dict[str, _Silence] = {}

    def on_call(self, authority: str, now_ns: int) -> None:
        """A device that has not answered yet is called."""
        up_count = self._link_of(authority).up_count
        silence = self._silent.get(authority)
        if silence is None or silence.up_count != up_count:
            self._silent[authority] = _Silence(up_count)
            self._due.schedule(authority, now_ns + PROBE_DELAY_MS * _NS_PER_MS)

    def end(self, authority: str) -> None:
        """The device has answered, or no call waits for its answer."""
        if self._silent.pop(authority, None) is not None:
            self._due.cancel(authority)

    def on_undelivered(self, authority: str) -> None:
        """A dispatcher on the path has answered: the next call has the other version anyway."""
        silence = self._silent.get(authority)
        if silence is not None and silence.probe is None:
            self.end(authority)

    def pop_due(self, now_ns: int) -> Iterator[str]:
        """The devices to probe now; pass each to `begin` or to `end`."""
        for authority in self._due.pop_all_due(now_ns):
            if self._link_of(authority).up:
                yield authority
            else:
                self.end(authority)

    def begin(self, probe: VersionProbe, now_ns: int) -> None:
        """Record a probe as pending. Called before the send, because the response can be immediate."""
        self._silent[probe.authority].probe = probe
        self._due.schedule(probe.authority, now_ns + self._lifetime_ns)

    def find(self, response: UAttributes) -> VersionProbe | None:
        """The pending probe that a Response answers, from its own device. Safe from any thread."""
        silence = self._silent.get(response.source.authority_name)
        probe = None if silence is None else silence.probe
        return probe if probe is not None and probe.reqid == response.reqid else None

    def next_due_ns(self) -> int | None:
        """The monotonic time of the next probe."""
        return self._due.next_due
