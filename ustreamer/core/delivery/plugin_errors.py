# SPDX-License-Identifier: Apache-2.0
"""What plugins get wrong on the path of messages, contained: counted, said once, and a tap that goes on is switched off."""

import logging
from threading import Lock
from typing import Final

log = logging.getLogger("ustreamer.plugins")

MAX_TAP_ERRORS: Final = 5
"""So many exceptions, and a tap is switched off: it has no say in what happens, only in how long it takes."""

_MAX_REPORTED_KINDS: Final = 100  # plugin and type of exception, for each endpoint
_MAX_COUNTED_TAPS: Final = 100
_MAX_TEXT: Final = 300


def plugin_name(plugin: object) -> str:
    """What a plugin's object is called in its source: the class of an object, the path of a function or method."""
    named: str = getattr(plugin, "__qualname__", type(plugin).__qualname__)
    return named


def describe_error(plugin: object, error: Exception) -> str:
    """`Class raised KeyError: 'x'`, for people, on one line."""
    return f"{plugin_name(plugin)} raised {safe_str(error)}"[:_MAX_TEXT]


def safe_str(error: Exception) -> str:
    """`KeyError: 'x'`, also where what the error has to say is a mistake of its own."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # foreign code
        return f"{type(error).__name__}, which cannot say why"


class PluginErrors:
    """The books of one endpoint about its plugins. Safe from any thread: taps run under the lock of a lane too."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = Lock()  # a leaf: nothing is called under it
        self._reported: set[tuple[str, type[Exception]]] = set()
        self._by_tap: dict[int, int] = {}
        self._counts = {"filter_errors": 0, "directory_errors": 0, "tap_errors": 0, "taps_off": 0}

    def record_filter_error(self, plugin: object, error: Exception) -> None:
        """A filter, or what makes filters, raised `error`."""
        self._record("filter_errors", plugin, error)

    def record_directory_error(self, directory: object, error: Exception) -> None:
        """A subscription directory raised `error`."""
        self._record("directory_errors", directory, error)

    def record_tap_error(self, tap: object, error: Exception) -> bool:
        """A tap raised `error`; whether it is to be switched off now."""
        self._record("tap_errors", tap, error)
        with self._lock:
            if len(self._by_tap) >= _MAX_COUNTED_TAPS:
                self._by_tap.clear()
            count = self._by_tap[id(tap)] = self._by_tap.get(id(tap), 0) + 1
            # Above as well: two taps of one endpoint may fail at once on two threads, and one be put back by the other.
            if count != MAX_TAP_ERRORS:
                return count > MAX_TAP_ERRORS
            self._counts["taps_off"] += 1
        log.error(
            "plugins.tap_disabled",
            extra={"endpoint": self._endpoint, "plugin": plugin_name(tap), "errors": count},
        )
        return True

    def _record(self, kind: str, plugin: object, error: Exception) -> None:
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
        """Exceptions of each kind of plugin, and `taps_off`: how many taps were switched off."""
        with self._lock:
            return dict(self._counts)
