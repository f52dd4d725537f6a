# SPDX-License-Identifier: Apache-2.0
"""What plugins get wrong on the path of messages, contained: counted, said once, and a tap that goes on is switched off."""

import logging
from threading import Lock
from typing import Final

log = logging.getLogger("ustreamer.plugins")

TAP_FAILURES: Final = 5
"""So many exceptions, and a tap is switched off: it has no say in what happens, only in how long it takes."""

_KINDS_REPORTED: Final = 100  # plugin and type of exception, for each endpoint
_TAPS_COUNTED: Final = 100
_LONGEST_TEXT: Final = 300


def name_of(plugin: object) -> str:
    """What a plugin's object is called in its source: the class of an object, the path of a function or method."""
    named: str = getattr(plugin, "__qualname__", type(plugin).__qualname__)
    return named


def described(plugin: object, error: Exception) -> str:
    """`Class raised KeyError: 'x'`, for people, on one line."""
    return f"{name_of(plugin)} raised {said(error)}"[:_LONGEST_TEXT]


def said(error: Exception) -> str:
    """`KeyError: 'x'`, also where what the error has to say is a mistake of its own."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # foreign code
        return f"{type(error).__name__}, which cannot say why"


class Faults:
    """The books of one endpoint about its plugins. Safe from any thread: taps run under the lock of a lane too."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = Lock()  # a leaf: nothing is called under it
        self._reported: set[tuple[str, type[Exception]]] = set()
        self._by_tap: dict[int, int] = {}
        self._counts = {"filter_errors": 0, "directory_errors": 0, "tap_errors": 0, "taps_off": 0}

    def of_filter(self, plugin: object, error: Exception) -> None:
        """A filter, or what makes filters, raised `error`."""
        self._note("filter_errors", plugin, error)

    def of_directory(self, directory: object, error: Exception) -> None:
        """A subscription directory raised `error`."""
        self._note("directory_errors", directory, error)

    def of_tap(self, tap: object, error: Exception) -> bool:
        """A tap raised `error`; whether it is to be switched off now."""
        self._note("tap_errors", tap, error)
        with self._lock:
            if len(self._by_tap) >= _TAPS_COUNTED:
                self._by_tap.clear()
            count = self._by_tap[id(tap)] = self._by_tap.get(id(tap), 0) + 1
            # Above as well: two taps of one endpoint may fail at once on two threads, and one be put back by the other.
            if count != TAP_FAILURES:
                return count > TAP_FAILURES
            self._counts["taps_off"] += 1
        log.error(
            "tap_switched_off", extra={"endpoint": self._endpoint, "plugin": name_of(tap), "errors": count}
        )
        return True

    def _note(self, kind: str, plugin: object, error: Exception) -> None:
        seen = name_of(plugin), type(error)
        with self._lock:
            self._counts[kind] += 1
            news = seen not in self._reported and len(self._reported) < _KINDS_REPORTED
            if news:
                self._reported.add(seen)
        if news:
            extra = {"endpoint": self._endpoint, "plugin": name_of(plugin)}
            log.error("plugin_failed", exc_info=error, extra=extra)

    def counts(self) -> dict[str, int]:
        """Exceptions of each kind of plugin, and `taps_off`: how many taps were switched off."""
        with self._lock:
            return dict(self._counts)
