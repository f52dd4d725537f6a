# SPDX-License-Identifier: Apache-2.0
"""The audit log: who subscribed, was denied, reset, redrove or reloaded. JSON lines, appended and never changed.

In: denials, changes of subscriptions, and the log events in `AUDITED`. Out: lines in a
file for the streamer's user only. A file above `MAX_BYTES` is renamed; `FILES` earlier ones are kept. One subject, such
as a source, has a burst of `BURST` lines and then one per second; the next line has the number of those left out.
"""

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from ustreamer.core.routing.identity import Peer
from ustreamer.core.routing.router import RoutingDecision
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.host.runtime.logs import JsonLines
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.ustatus import UCode, UStatusError

LOGGER: Final = "ustreamer.audit"
AUDITED: Final = frozenset(
    {
        "control.reload_refused",
        "dead_letters.redriven",
        "streamer.intrusion_began",
        "streamer.intrusion_ended",
        "streamer.reloaded",
        "usubscription.reset_requested",
        "wamp.login_limit",
        "wamp.session_revoked",
    }
)
"""Log events that are audited."""
MAX_BYTES: Final = 16_000_000
FILES: Final = 4
BURST: Final = 100
_MAX_SUBJECTS: Final = 4096
_NS_PER_S: Final = 1_000_000_000


class SubjectLimiter:
    """A token bucket for each subject; the least recent subject is forgotten first."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._buckets: OrderedDict[str, tuple[int, int, int]] = OrderedDict()  # left, since_ns, suppressed

    def admit(self, subject: str) -> int | None:
        """The number of lines left out before this one; None: leave this one out, too."""
        now_ns = self._monotonic_ns()
        left, since_ns, suppressed = self._buckets.pop(subject, (BURST, now_ns, 0))
        seconds = (now_ns - since_ns) // _NS_PER_S
        left, since_ns = min(BURST, left + seconds), since_ns + seconds * _NS_PER_S
        admitted = left > 0
        self._buckets[subject] = (left - 1, since_ns, 0) if admitted else (0, since_ns, suppressed + 1)
        if len(self._buckets) > _MAX_SUBJECTS:
            self._buckets.popitem(last=False)
        return suppressed if admitted else None


class AuditLog(logging.Handler):
    """Appends audited events to a file. A write that fails is counted in the next line, as `lost`."""

    def __init__(self, path: Path, monotonic_ns: Callable[[], int], max_bytes: int = MAX_BYTES) -> None:
        """Opens the file. Raises UStatusError(UNAVAILABLE)."""
        super().__init__()
        self.setFormatter(JsonLines())
        self.addFilter(lambda record: record.name == LOGGER or record.getMessage() in AUDITED)
        self._path = path
        self._max_bytes = max_bytes
        self._limiter = SubjectLimiter(monotonic_ns)
        self._lost = 0
        try:
            self._file = _open(path)
        except OSError as error:
            raise UStatusError(UCode.UNAVAILABLE, f"audit log {path}: {error.strerror}") from error

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line. Called under the lock of the handler."""
        fields = vars(record)
        suppressed = self._limiter.admit(
            str(fields.get("source") or fields.get("subscriber") or record.getMessage())
        )
        if suppressed is None:
            return
        line = json.loads(self.format(record))
        for internal in ("limited", "logger"):
            line.pop(internal, None)
        line |= {"suppressed": suppressed} if suppressed else {}
        line |= {"lost": self._lost} if self._lost else {}
        data = json.dumps(line).encode() + b"\n"
        try:
            if self._file < 0:
                return
            if os.fstat(self._file).st_size + len(data) > self._max_bytes:
                self._rotate()
            os.write(self._file, data)
            self._lost = 0
        except OSError:
            self._lost += 1

    def _rotate(self) -> None:
        if self._path.exists():  # else it was moved, and the new file could not be opened
            for number in range(FILES - 1, 0, -1):
                older = self._path.with_name(f"{self._path.name}.{number}")
                if older.exists():
                    older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        full, self._file = self._file, _open(self._path)
        os.close(full)

    def start(self) -> None:
        """Audit from now on, whatever the level of the log is."""
        root = logging.getLogger("ustreamer")
        for handler in root.handlers:
            handler.setLevel(max(handler.level, root.level))
        root.setLevel(min(root.level, logging.INFO))
        root.addHandler(self)

    def on_denied(
        self, endpoint: str, attributes: UAttributes, decision: RoutingDecision, peer: Peer
    ) -> None:
        """Messages of a source are denied: called once per route, not per message."""
        fields = {
            "endpoint": endpoint,
            "source": str(attributes.source),
            "sink": None if attributes.sink is None else str(attributes.sink),
            "type": attributes.type.name.lower(),
            "sender": str(peer),
            "denied_as": decision.denied_as,
            "reason": "" if decision.reason is None else decision.reason.message,
        }
        self._record("audit.denied", fields)

    def on_subscription(self, subscription: Subscription, change: Change, peer: Peer) -> None:
        """A subscription has changed. Those that exist at the start are no change."""
        if change is Change.PRESENT:
            return
        fields = {
            "subscriber": str(subscription.subscriber),
            "topic": str(subscription.topic),
            "period_ns": subscription.period_ns,
            "sender": str(peer),
        }
        self._record(f"audit.{change.name.lower()}", fields)

    def _record(self, event: str, fields: Mapping[str, object]) -> None:
        record = logging.makeLogRecord(
            {"name": LOGGER, "levelno": logging.INFO, "levelname": "INFO", "msg": event, **fields}
        )
        self.handle(record)

    def close(self) -> None:
        """End the audit. May be repeated."""
        logging.getLogger("ustreamer").removeHandler(self)
        with self.lock or nullcontext():
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
        super().close()


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
