# SPDX-License-Identifier: Apache-2.0
"""Contains plugin exceptions on the message path: counts each, logs each kind once, disables taps that keep failing.

It also logs a filter that refuses the answers of a uSubscription.
"""

import logging
from threading import Lock
from typing import Final

from ustreamer.core.base.log_limit import limited
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage

log = logging.getLogger("ustreamer.plugins")

MAX_TAP_ERRORS: Final = 5
"""Exceptions after which a tap is disabled: a failing tap affects no verdict, but costs time per message."""

FOREIGN_ERRORS: Final = (BaseException,)
"""What a plugin may raise without effect on other messages: also SystemExit, CancelledError of asyncio, and groups.

Each would end the receiving thread. KeyboardInterrupt comes to the main thread, which runs no message.
"""

_MAX_REPORTED_KINDS: Final = 100  # pairs of plugin and exception type, per endpoint
_MAX_COUNTED_TAPS: Final = 100
_MAX_TEXT: Final = 300
_USUBSCRIPTION_TYPE: Final = 0
"""The type in the ue_id of every uSubscription."""


def plugin_name(plugin: object) -> str:
    """The name of a plugin object in its source: the class of an object, the path of a function or method."""
    named: str = getattr(plugin, "__qualname__", type(plugin).__qualname__)
    return named


def describe_error(plugin: object, error: BaseException) -> str:
    """One readable line: `Class raised KeyError: 'x'`."""
    return f"{plugin_name(plugin)} raised {safe_str(error)}"[:_MAX_TEXT]


def safe_str(error: BaseException) -> str:
    """`KeyError: 'x'`, also if the `__str__` of the error raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # foreign code
        return f"{type(error).__name__} (no text: its __str__ raises)"


def is_subscription_answer(message: UMessage) -> bool:
    """Whether a uSubscription has sent `message` to a subscriber: a response, or an update of a subscription."""
    attributes = message.attributes
    types = (UMessageType.RESPONSE, UMessageType.NOTIFICATION)
    return attributes.type in types and attributes.source.ue_type == _USUBSCRIPTION_TYPE


def warn_of_refused_answer(plugin: object, endpoint: str, message: UMessage) -> None:
    """Log that a filter refused a message of a uSubscription: its receiver waits, and has no other hint."""
    name, attributes = plugin_name(plugin), message.attributes
    log.warning(
        "plugins.subscription_answer_refused",
        extra={
            "endpoint": endpoint,
            "plugin": name,
            "source": str(attributes.source),
            "sink": str(attributes.sink),
            "advice": "a filter for publications only returns None for a delivery whose topic is None",
            **limited(name, endpoint),
        },
    )


class PluginErrors:
    """Plugin error counters of one endpoint. Thread-safe: taps also run under the lock of an egress queue."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = Lock()  # a leaf lock: no call under it
        self._reported: set[tuple[str, type[BaseException]]] = set()
        self._by_tap: dict[int, int] = {}
        self._counts = {"filter_errors": 0, "directory_errors": 0, "tap_errors": 0, "taps_off": 0}

    def record_filter_error(self, plugin: object, error: BaseException) -> None:
        """Record that a filter or a filter factory raised `error`."""
        self._record("filter_errors", plugin, error)

    def record_directory_error(self, directory: object, error: BaseException) -> None:
        """Record that a subscription directory raised `error`."""
        self._record("directory_errors", directory, error)

    def record_tap_error(self, tap: object, error: BaseException) -> bool:
        """Record that a tap raised `error`; return True if the tap must be disabled now."""
        self._record("tap_errors", tap, error)
        with self._lock:
            if len(self._by_tap) >= _MAX_COUNTED_TAPS:
                self._by_tap.clear()
            count = self._by_tap[id(tap)] = self._by_tap.get(id(tap), 0) + 1
            # True also above the limit: two taps can fail at once on two threads, and one re-add the other.
            if count != MAX_TAP_ERRORS:
                return count > MAX_TAP_ERRORS
            self._counts["taps_off"] += 1
        log.error(
            "plugins.tap_disabled",
            extra={"endpoint": self._endpoint, "plugin": plugin_name(tap), "errors": count},
        )
        return True

    def forget_tap(self, tap: object) -> None:
        """Forget the errors of a tap that was removed: another tap may get its id."""
        with self._lock:
            self._by_tap.pop(id(tap), None)

    def _record(self, kind: str, plugin: object, error: BaseException) -> None:
        seen = plugin_name(plugin), type(error)
        with self._lock:
            self._counts[kind] += 1
            is_first = seen not in self._reported and len(self._reported) < _MAX_REPORTED_KINDS
            if is_first:
                self._reported.add(seen)
        if is_first:
            extra = {"endpoint": self._endpoint, "plugin": plugin_name(plugin)}
            log.error("plugins.failed", exc_info=error, extra=extra)

    def counts(self) -> dict[str, int]:
        """The number of exceptions per kind of plugin, and `taps_off`: the number of disabled taps."""
        with self._lock:
            return dict(self._counts)
