# SPDX-License-Identifier: Apache-2.0
"""The shared base of client and server: deadlines, rng and the buffer of actions.

Input: actions and entries from `client.py`, `server.py` and `peer_announcer.py`. Output: ordered actions from `drain`.
Entries for the same receiver share one message, or several if the size limit requires it.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Final

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, UnencodableMessage
from ustreamer.transports.someip.sd.actions import Action, SdInputRefused, Send
from ustreamer.transports.someip.sd.codec import ENTRY_SIZE, Entry, SdMessage, encode_sd_message, option_runs
from ustreamer.transports.someip.sd.options import Option, write_option
from ustreamer.transports.someip.sd.settings import SdSettings

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

_FIXED: Final = HEADER_LENGTH + 12
NextSession = Callable[[Address | None], tuple[int, bool]]


class ActionBuffer:
    """Collects actions until `drain`.

    `next_session` returns session number and reboot flag of the next message to a peer.
    """

    def __init__(self, settings: SdSettings, rng: Callable[[], float], next_session: NextSession) -> None:
        self.settings = settings
        self.timings = settings.timings
        self.deadlines: DeadlineQueue[tuple[object, Hashable]] = DeadlineQueue()
        self._rng = rng
        self._next_session = next_session
        self._actions: list[Action] = []
        self._after_sends: list[Action] = []
        self._enqueued: dict[Address | None, list[tuple[Entry, ...]]] = {}

    # [impl->SD-64]
    def random_delay_ns(self, min_ms: int, max_ms: int) -> int:
        """A random delay in ns."""
        return round((min_ms + (max_ms - min_ms) * self._rng()) * NS_PER_MS)

    # [impl->SD-85]
    def response_delay_ns(self) -> int:
        """The random delay of the answer to a multicast, in ns."""
        return self.random_delay_ns(
            self.timings.request_response_delay_min_ms, self.timings.request_response_delay_max_ms
        )

    # [impl->SD-62]
    def initial_delay_ns(self) -> int:
        return self.random_delay_ns(self.timings.initial_delay_min_ms, self.timings.initial_delay_max_ms)

    def emit(self, action: Action) -> None:
        """Append an action that precedes all sends."""
        self._actions.append(action)

    def emit_after(self, action: Action) -> None:
        """Append an action that follows all sends."""
        self._after_sends.append(action)

    def emit_refused(self, reason: str, peer: Address, detail: str) -> None:
        self.emit(SdInputRefused(str(reason), peer, detail))

    # [impl->SD-1178]
    def enqueue(self, to: Address | None, *entries: Entry) -> None:
        """Send entries to one peer or (None) to the group; the entries stay together and in order."""
        self._enqueued.setdefault(to, []).append(entries)

    # [impl->SD-836]
    def drain(self) -> list[Action]:
        """Return all buffered actions and clear the buffer."""
        sends = [
            self._send(to, entries)
            for to, groups in self._enqueued.items()
            for entries in self._messages(groups)
        ]
        actions = [*self._actions, *sends, *self._after_sends]
        self._actions, self._after_sends, self._enqueued = [], [], {}
        return actions

    def _send(self, to: Address | None, entries: tuple[Entry, ...]) -> Send:
        session, reboot = self._next_session(to)
        message = SdMessage(entries, reboot=reboot, initial_data=self.settings.initial_data)
        return Send(encode_sd_message(message, session), to)

    def _messages(self, groups: list[tuple[Entry, ...]]) -> Iterator[tuple[Entry, ...]]:
        max_bytes = self.settings.limits.datagram
        entries: list[Entry] = []
        options: list[Option] = []
        size = _FIXED
        for group in groups:
            more = _added_bytes(group, options)
            if entries and (more is None or size + more > max_bytes):
                yield tuple(entries)
                entries, options, size = [], [], _FIXED
                more = _added_bytes(group, options)
            entries += group
            size += more or 0  # a group that no message can hold: the encoder raises
        if entries:
            yield tuple(entries)


def _added_bytes(group: tuple[Entry, ...], options: list[Option]) -> int | None:
    """The bytes that a group adds to a message with these `options`, which grow as the encoder will write them.

    The encoder writes an option again where no run can refer to the first copy. None: no place for the options.
    """
    known = len(options)
    try:
        for entry in group:
            option_runs(entry.options, options)
    except UnencodableMessage:
        return None
    return ENTRY_SIZE * len(group) + sum(len(write_option(each)) for each in options[known:])
