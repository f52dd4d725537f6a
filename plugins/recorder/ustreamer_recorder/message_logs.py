# SPDX-License-Identifier: Apache-2.0
"""The logs that senders and receivers write next to a streamer: a file of JSON lines in, `MessageLog` out.

docs/recordings.md defines the lines.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

T = TypeVar("T")

_SHOWN: Final = 80
"""Bytes of a wrong line in an error."""


class LogLine(msgspec.Struct, frozen=True, gc=False):
    """One line. `receiver` or `sender` makes it a start, `id` a message, `away_ms` an absence, `end` an end."""

    time_ms: int
    receiver: str | None = None
    sender: str | None = None
    endpoint: str | None = None
    expects: list[str] = []
    subscriber: str | None = None
    id: str | None = None
    topic: str | None = None
    away_ms: int | None = None
    end: bool = False

    @property
    def is_start(self) -> bool:
        return self.receiver is not None or self.sender is not None


class Life(msgspec.Struct):
    """The time in which a receiver was ready: from its start to its end, or to its last line if it was killed.

    `until_ms` is None for the last life of a log without an end: the receiver still expects messages.
    """

    since_ms: int
    last_ms: int
    until_ms: int | None = None
    was_killed: bool = False


class MessageLog(msgspec.Struct):
    """The messages that one receiver received, or one sender sent, and the time of the first line of each."""

    name: str
    endpoint: str = ""
    expects: tuple[UUri, ...] = ()
    subscriber: UUri | None = None
    lives: list[Life] = []
    absences_ms: list[tuple[int, int]] = []
    """Begin and end of each time in which the receiver was frozen or without a network."""
    copies: Counter[UUID] = msgspec.field(default_factory=Counter)
    times_ms: dict[UUID, int] = {}
    addresses: dict[UUID, UUri] = {}

    def is_ready(self, time_ms: int) -> bool:
        """Whether the receiver was ready at that time."""
        return not self.is_absent(time_ms) and any(
            each.since_ms <= time_ms and (each.until_ms is None or time_ms <= each.until_ms)
            for each in self.lives
        )

    def is_absent(self, time_ms: int) -> bool:
        """Whether the receiver was frozen or without a network at that time."""
        return any(since_ms <= time_ms <= until_ms for since_ms, until_ms in self.absences_ms)

    def is_before_or_after(self, time_ms: int) -> bool:
        """Whether that time is before the first start or after the last end."""
        until_ms = self.lives[-1].until_ms
        return time_ms < self.lives[0].since_ms or (until_ms is not None and time_ms > until_ms)


def read_receiver_log(path: Path) -> MessageLog:
    """The log of one receiver. Raises UStatusError(INVALID_ARGUMENT) with file, line, value and what is expected."""
    return _LogReader(path, "receiver").read()


def read_sender_log(path: Path) -> MessageLog:
    """The log of one sender. Raises as `read_receiver_log`."""
    return _LogReader(path, "sender").read()


class _LogReader:
    def __init__(self, path: Path, role: str) -> None:
        self._path = path
        self._role = role
        self._number = 0
        self._log: MessageLog | None = None
        self._decode = msgspec.json.Decoder(LogLine).decode

    def read(self) -> MessageLog:
        torn: UStatusError | None = None
        data = b""
        try:
            with self._path.open("rb") as file:
                for self._number, data in enumerate(file, 1):
                    if data.strip():
                        torn = self._add_unless_torn(data, torn)
        except OSError as error:
            raise invalid_argument(
                f"{self._path}: {error.strerror}: expected a log of a {self._role}"
            ) from error
        if torn is not None and data.endswith(b"\n"):
            raise torn
        if self._log is None:
            raise invalid_argument(f"{self._path}: has no line: expected a start, {self._example()}")
        return self._log

    def _add_unless_torn(self, data: bytes, torn: UStatusError | None) -> UStatusError | None:
        """Add a line and return None; or return the error of a line that can be torn.

        A killed process may leave half a line: at the end of the file, or before its next start.
        """
        line = self._line(data)
        if torn is not None and (isinstance(line, UStatusError) or not line.is_start):
            raise torn
        if isinstance(line, UStatusError):
            return line
        self._add(line)
        return None

    def _example(self) -> str:
        more = ', "endpoint": "backbone", "expects": ["//chassis/1234/1/8001"]'
        return (
            f'{{"{self._role}": "NAME", "time_ms": 1700000000000{more if self._role == "receiver" else ""}}}'
        )

    def _error(self, reason: str) -> UStatusError:
        return UStatusError(UCode.INVALID_ARGUMENT, f"{self._path}, line {self._number}: {reason}")

    def _line(self, data: bytes) -> LogLine | UStatusError:
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            shown = repr(data.strip()[:_SHOWN])[1:]  # without the b
            return self._error(f"{shown}: {error}: expected a JSON object with time_ms in ms since 1970")

    def _add(self, line: LogLine) -> None:
        if line.is_start:
            self._start(line)
            return
        log = self._log
        if log is None:
            raise self._error(f"a line before the first start: expected {self._example()}")
        life = log.lives[-1]
        if life.until_ms is not None:
            raise self._error("a line after the end: expected a start")
        life.last_ms = max(life.last_ms, line.time_ms)
        if line.end:
            life.until_ms = line.time_ms
        elif line.id is not None:
            self._message(log, line, line.id)
        elif line.away_ms is not None:
            log.absences_ms.append((line.time_ms - line.away_ms, line.time_ms))
        else:
            raise self._error('of no kind: expected "id", "away_ms", "end": true, or a start')

    def _message(self, log: MessageLog, line: LogLine, text: str) -> None:
        id = self._parsed("id", UUID.parse, text)
        log.copies[id] += 1
        log.times_ms.setdefault(id, line.time_ms)
        if self._role == "sender":
            if line.topic is None:
                raise self._error("no topic: expected the topic, or the sink of a message that has one")
            log.addresses[id] = self._parsed("topic", UUri.parse, line.topic)

    def _start(self, line: LogLine) -> None:
        name = line.receiver if self._role == "receiver" else line.sender
        if name is None:
            raise self._error(f"is of another role: expected {self._example()}")
        if self._role == "receiver" and not (line.endpoint and line.expects):
            raise self._error(f"start of {name!r} without endpoint or expects: expected {self._example()}")
        log = MessageLog(
            name,
            line.endpoint or "",
            tuple(self._parsed("expects", UUri.parse, each) for each in line.expects),
            None if line.subscriber is None else self._parsed("subscriber", UUri.parse, line.subscriber),
        )
        if self._log is None:
            self._log = log
        elif _identity(log) != _identity(self._log):
            raise self._error(
                f"start of {name!r}: expected the same as the first, one log for each {self._role}"
            )
        lives = self._log.lives
        if lives and lives[-1].until_ms is None:
            lives[-1].until_ms, lives[-1].was_killed = lives[-1].last_ms, True
        lives.append(Life(line.time_ms, line.time_ms))

    def _parsed(self, key: str, parse: Callable[[str], T], text: str) -> T:
        try:
            return parse(text)
        except UStatusError as error:
            raise self._error(f"{key}: {error.message}") from error


def _identity(log: MessageLog) -> tuple[object, ...]:
    return log.name, log.endpoint, log.expects, log.subscriber
