# SPDX-License-Identifier: Apache-2.0
"""Probes: requests to devices that do not answer a call, to find out their version of the interface.

A call waits 5 minutes for its answer, and a device may listen at the methods of the other version only. So probes
follow a second after a call without an answer. An answer to any call ends them.

* A device that has not answered yet gets a copy of the call in the other version, once in 5 minutes. It is as valid as
  a call, and its answer settles the version.
* A device that has answered before may have got another software behind a router. It gets FetchSubscriptions in both
  versions, every 10 s. That changes nothing there. An answer in the other version settles it, unless one in the same
  version follows within a second: a slow device that knows both keeps its version.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.base.links import LinkState
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

PROBE_DELAY_MS: Final = 1_000
"""An answer of a device that is there takes milliseconds."""
FETCH_INTERVAL_MS: Final = 10_000
"""Also the ttl of FetchSubscriptions: without a listener, it waits at the endpoint for the device."""

_NS_PER_MS: Final = 1_000_000


class VersionProbe(msgspec.Struct, frozen=True):
    """A request about `topic` to the device `authority`, in `version`."""

    reqid: UUID
    authority: str
    topic: UUri
    version: int


class _Silence(msgspec.Struct):
    """A called device that has not answered since its link came up `up_count` times; its probes once they are sent.

    `answered` is the one in the other version if only that one has an answer.
    """

    up_count: int
    probes: Sequence[VersionProbe] = ()
    answered: VersionProbe | None = None


class VersionProbes:
    """The probes of all devices, by authority. Belongs to one thread, except `find`."""

    def __init__(self, link_of: Callable[[str], LinkState]) -> None:
        """`link_of` is the link state of an authority."""
        self._link_of = link_of
        self._due: DeadlineQueue[str] = DeadlineQueue()
        self._silent: dict[str, _Silence] = {}

    def on_call(self, authority: str, now_ns: int) -> None:
        """A device is called."""
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
        if silence is not None and not silence.probes:
            self.end(authority)

    def pop_due(self, now_ns: int) -> Iterator[str]:
        """The devices to probe now, unless `answered` has a probe; pass each to `begin` or to `end`."""
        for authority in self._due.pop_all_due(now_ns):
            if self._link_of(authority).up:
                yield authority
            else:
                self.end(authority)

    def begin(self, probes: Sequence[VersionProbe], now_ns: int, next_ms: int) -> None:
        """Record the probes of a device as pending, and the time until the next ones.

        Called before the send, because the response can be immediate.
        """
        authority = probes[0].authority
        self._silent[authority].probes = probes
        self._due.schedule(authority, now_ns + next_ms * _NS_PER_MS)

    def on_answer_in_other_version(self, probe: VersionProbe, now_ns: int) -> None:
        """The device is due when its answer in the same version would have followed."""
        silence = self._silent[probe.authority]
        if silence.answered is None:
            silence.answered = probe
            self._due.schedule(probe.authority, now_ns + PROBE_DELAY_MS * _NS_PER_MS)

    def postpone(self, probe: VersionProbe, now_ns: int, next_ms: int) -> None:
        """The device refused a probe: set the time until the next ones."""
        if self._silent[probe.authority].answered is None:
            self._due.schedule(probe.authority, now_ns + next_ms * _NS_PER_MS)

    def answered(self, authority: str) -> VersionProbe | None:
        """The probe in the other version that alone was answered, by a device that is due."""
        return self._silent[authority].answered

    def find(self, response: UAttributes) -> VersionProbe | None:
        """The pending probe that a Response answers, from its own device. Safe from any thread."""
        silence = self._silent.get(response.source.authority_name)
        probes = () if silence is None else silence.probes
        return next((each for each in probes if each.reqid == response.reqid), None)

    def next_due_ns(self) -> int | None:
        """The monotonic time of the next probe."""
        return self._due.next_due
