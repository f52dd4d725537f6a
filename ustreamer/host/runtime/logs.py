# SPDX-License-Identifier: Apache-2.0
"""Log lines for people and for programs: an event name with its component as prefix, and fields.

No event is logged per packet. `LogLimiter` limits what remote hosts can cause; `write_due` writes the lines that it
held back, and `suppressed_lines` counts those that it left out.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeAlias

from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.log_limiter import LogLimiter
from ustreamer.host.runtime.log_stream import LogStream
from ustreamer.host.runtime.recent_events import recent_log

log = logging.getLogger("ustreamer.streamer")

LogForm: TypeAlias = Literal["console", "journal", "json"]

SUMMARY: Final = "summary"
"""The field of an event with many fields that has a sentence for people in place of the others."""
_WRITE_S: Final = 5.0
"""For a terminal or a pipe to take what waits, at the end of the process. A busy machine may need seconds for it."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _safe_text(value: object) -> str:
    """A value as text, also if its `__str__` raises."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a log line must not fail because of its values
        return object.__repr__(value)


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, event, and the fields of the event.

    A field with one of these names gets an underscore. A value that JSON cannot express is written as text. Of an event
    with a `summary`, tables of tables are left out unless `verbose`: the counters of each endpoint are one.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        super().__init__()
        self._verbose = verbose

    def format(self, record: logging.LogRecord) -> str:
        import json  # the other form of a log needs none

        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        values = _fields(record)
        if SUMMARY in values and not self._verbose:
            values = {name: value for name, value in values.items() if not _is_nested(value)}
        fields = {f"{name}_" if name in line else name: value for name, value in values.items()}
        return json.dumps(line | {name: _to_json_value(value) for name, value in fields.items()})


def _is_nested(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values())


def _to_json_value(value: object) -> object:
    import json

    try:
        return json.loads(json.dumps(value, default=_safe_text, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return _safe_text(value)


class Console(logging.Formatter):
    """`12:34:56.789 WARNING egress.unavailable endpoint=backbone`: for a serial console, without colour.

    An event with a `summary` shows only this sentence, unless `verbose`.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        super().__init__()
        self._verbose = verbose

    def format(self, record: logging.LogRecord) -> str:
        values = _fields(record)
        summary = values.pop(SUMMARY, "")
        shown = {} if summary and not self._verbose else values
        fields = "".join(f" {name}={_safe_text(value)}" for name, value in shown.items())
        sentence = f": {_safe_text(summary)}" if summary else ""
        line = f"{self._start(record)}{record.getMessage()}{sentence}{fields}".replace("\n", "\\n")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def _start(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        return f"{clock} {record.levelname} "


class JournalLines(Console):
    """`<4>egress.unavailable endpoint=backbone`: as `Console`, for a journal that adds time and reads the level.

    The number is that of syslog, in front of each line, as in sd-daemon(3).
    """

    def format(self, record: logging.LogRecord) -> str:
        level = next(number for least, number in _SYSLOG_LEVELS if record.levelno >= least)
        return "\n".join(f"<{level}>{line}" for line in super().format(record).split("\n"))

    def _start(self, record: logging.LogRecord) -> str:
        return ""


_SYSLOG_LEVELS: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
    (0, 7),
)


def configure_logging(form: LogForm = "console", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Write the log of all loggers below `ustreamer` to `stream`; by default to stderr, and without waiting for it."""
    handler: logging.StreamHandler[Any] = logging.StreamHandler(stream or _stderr_stream())
    is_verbose = level.upper() == "DEBUG"
    formatters: Mapping[LogForm, logging.Formatter] = {
        "console": Console(verbose=is_verbose),
        "journal": JournalLines(verbose=is_verbose),
        "json": JsonLines(verbose=is_verbose),
    }
    handler.setFormatter(formatters[form])
    handler.addFilter(LogLimiter(SYSTEM_CLOCK.monotonic_ns))
    root = logging.getLogger("ustreamer")
    root.handlers[:] = [handler]
    recent_log()
    root.setLevel(level.upper())
    root.propagate = False


def _stderr_stream() -> LogStream | None:
    return None if sys.stderr is None else LogStream(sys.stderr, _report_left_out)


def _report_left_out(lines: int) -> None:
    log.warning("streamer.log_lines_left_out", extra={"lines": lines})


def _streams() -> Iterator[LogStream]:
    for handler in logging.getLogger("ustreamer").handlers:
        if isinstance(handler, logging.StreamHandler) and isinstance(handler.stream, LogStream):
            yield handler.stream


def write_text(text: str) -> None:
    """Write a line for people behind the log, without waiting for long, at the end of the process."""
    for each in _streams():
        each.write(f"{text}\n")


def wait_written() -> None:
    """Wait until the log is written, but not for a terminal that takes nothing. Call it at the end of the process."""
    for each in _streams():
        each.wait_written(_WRITE_S)


def _limiters() -> Iterator[tuple[logging.Handler, LogLimiter]]:
    for handler in logging.getLogger("ustreamer").handlers:
        for each in handler.filters:
            if isinstance(each, LogLimiter):
                yield handler, each


def write_due(*, at_end: bool = False) -> None:
    """Write the limited lines that are due now; `at_end` all that wait. Call it once a second."""
    for handler, limiter in _limiters():
        for record in limiter.pop_due(at_end=at_end):
            handler.handle(record)


def suppressed_lines() -> Mapping[str, int]:
    """The number of log lines that the limit left out, by event; and of those that stderr did not take."""
    found = {event: count for _, limiter in _limiters() for event, count in limiter.suppressed().items()}
    left_out = sum(each.left_out for each in _streams())
    return found | ({"streamer.log_lines_left_out": left_out} if left_out else {})
