# SPDX-License-Identifier: Apache-2.0
"""The operations that admin requests and SIGHUP perform on a running streamer.

In: `AdminRequest` values. Out: results for the admin socket, and UStatusError for failures.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.host.admin.server import (
    AddressesRequest,
    AdminError,
    AdminRequest,
    PluginRequest,
    PluginsRequest,
    PurgeRequest,
    RedriveRequest,
    ReloadRequest,
    RoutesRequest,
    StatisticsRequest,
    TapRequest,
    TopRequest,
    WhyRequest,
)
from ustreamer.host.admin.status import NotRedriven, Redriven, RedriveResult
from ustreamer.host.config.config import ConfigError, StreamerConfig
from ustreamer.host.runtime.plugins import PluginError
from ustreamer.host.runtime.recent_events import recent_log
from ustreamer.host.runtime.reload import ReloadRefused
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import UUri

# Imported by the first request of `ustreamer tap` or `ustreamer top`.
if TYPE_CHECKING:
    from ustreamer.host.admin.taps import TapFilter, Taps

MAX_LISTED: Final = 1_000
"""Dead letters that a response lists one by one."""
_BATCH: Final = 100  # dead letters deleted in one commit; a power failure can duplicate as many
_SAFE_WAIT_S: Final = 5.0
"""For durable endpoints to write a batch. A redrive ends if they do not."""
_CALLS: Final = (UMessageType.REQUEST, UMessageType.RESPONSE)

log = logging.getLogger("ustreamer.control")


class Control:
    """The operations of one streamer. From any thread; one reload at a time."""

    def __init__(self, streamer: Streamer, path: Path, load: Callable[[Path], StreamerConfig]) -> None:
        """`path` is the current configuration file. `load` reads and checks a file; raises ConfigError or PluginError."""
        self._streamer = streamer
        self._path = path
        self._load = load
        self._reloading = Lock()
        self._redriving = Lock()
        self._closing = False
        self._handlers: Mapping[type[AdminRequest], Callable[[Any], object]] = {
            ReloadRequest: lambda request: self.reload(Path(request.config)),
            RoutesRequest: lambda _: streamer.routes(),
            StatisticsRequest: lambda _: streamer.statistics(),
            AddressesRequest: lambda _: streamer.bound_addresses(),
            PluginsRequest: lambda _: [name for name, _ in streamer.plugins.list_name_plugin()],
            PluginRequest: self._request_plugin,
            RedriveRequest: self._redrive,
            PurgeRequest: lambda request: streamer.dead_letter_writer.store.delete(request.numbers),
            TapRequest: self._open_tap,
            TopRequest: self._open_top,
            WhyRequest: self._diagnose,
        }

    @cached_property
    def _taps(self) -> "Taps":
        from ustreamer.host.admin.taps import Taps

        return Taps(self._streamer.dispatcher, self._streamer.decoder)

    def _open_tap(self, request: TapRequest) -> object:
        ends = list(self._streamer.transports)
        if request.at is not None and request.at not in ends:
            raise invalid_argument(f"endpoint {request.at!r}: expected one of {', '.join(ends)}")
        return self._taps.open_reader(_tap_filter(request))

    def _request_plugin(self, request: PluginRequest) -> object:
        handle = getattr(self._streamer.plugins.get_plugin(request.plugin), "handle_request", None)
        if handle is None:
            raise UStatusError(UCode.UNIMPLEMENTED, f"plugin {request.plugin!r}: it takes no requests")
        return handle(request.request)

    def _open_top(self, request: TopRequest) -> object:
        from ustreamer.host.runtime.top_stream import TopStream  # imported by the first request only

        sources = self._streamer.top_sources(self._taps.subscribers_of)
        self._taps.take_slot()
        return TopStream(sources, request.interval_s, self._taps.release_slot)

    def handle_request(self, request: AdminRequest) -> object:
        """Perform a request. Raises UStatusError, or AdminError with the problems of a configuration."""
        return self._handlers[type(request)](request)

    def close(self) -> None:
        """Refuse further reloads and redrives before a stop. A redrive in progress ends after its batch."""
        self._closing = True

    # --- reload ------------------------------------------------------------------------------------------------------

    def reload(self, path: Path) -> list[str]:
        """Apply the configuration in `path`; returns the changed keys. Success and failure are logged.

        Raises AdminError with all problems (INVALID_ARGUMENT) or all keys that need a restart (FAILED_PRECONDITION),
        and UStatusError if a transport refuses. Then nothing has changed.
        """
        with self._reloading:
            if self._closing:
                raise _reload_error(UCode.UNAVAILABLE, path, ["the streamer is about to stop"])
            try:
                changed = self._streamer.reload(self._load(path))
            except (ConfigError, PluginError) as error:
                raise _reload_error(UCode.INVALID_ARGUMENT, path, str(error).splitlines()) from error
            except ReloadRefused as error:
                raise _reload_error(UCode.FAILED_PRECONDITION, path, error.problems) from error
            except UStatusError as error:
                raise _reload_error(error.code, path, [error.message]) from error
            self._path = path
            return changed

    def on_sighup(self) -> None:
        """Reload the current configuration file. An invalid file is logged and ignored."""
        try:
            self.reload(self._path)
        except AdminError:
            return

    # --- diagnosis ---------------------------------------------------------------------------------------------------

    def _diagnose(self, request: WhyRequest) -> object:
        # Imported by the first request only.
        from ustreamer.host.diagnosis.diagnosis import diagnose
        from ustreamer.host.runtime.evidence import FileState, collect_evidence

        file = FileState()
        if request.config is not None:
            path = Path(request.config)
            file = FileState(*self._compare_file(path), _written_ms(path))
        source = None if request.source is None else UUri.parse(request.source)
        evidence = collect_evidence(
            self._streamer.diagnosis_sources(),
            UUri.parse(request.subject),
            source,
            request.sample_s,
            recent_log().lines(),
            file,
        )
        return diagnose(evidence)

    def _compare_file(self, path: Path) -> tuple[tuple[str, ...], str]:
        """The keys of a file that differ from the running configuration, and why it cannot be loaded."""
        try:
            return tuple(self._streamer.unloaded_keys(self._load(path))), ""
        except (ConfigError, PluginError) as error:
            return (), str(error).splitlines()[0]

    # --- dead letters ------------------------------------------------------------------------------------------------

    def _redrive(self, request: RedriveRequest) -> RedriveResult:
        with self._redriving:  # two at once would send a letter twice
            return self._redrive_letters(request)

    def _redrive_letters(self, request: RedriveRequest) -> RedriveResult:
        store = self._streamer.dead_letter_writer.store
        numbers = store.numbers() if request.numbers is None else list(dict.fromkeys(request.numbers))
        done: list[Redriven] = []
        left: list[NotRedriven] = []
        for start in range(0, len(numbers), _BATCH):
            if self._closing:
                left += [NotRedriven(number, "the streamer is about to stop") for number in numbers[start:]]
                break
            batch = []
            for number in numbers[start : start + _BATCH]:
                try:
                    if request.numbers is None:
                        self._reject_call(number)
                    batch.append(self._streamer.redrive(number))
                except UStatusError as error:
                    left.append(NotRedriven(number, error.message))
            # Only then: a kill would lose a message that is neither a letter nor on disk.
            if batch and not self._streamer.wait_safe(_SAFE_WAIT_S):
                text = "sent as {}, and not deleted: a durable endpoint cannot write it to disk"
                left += [NotRedriven(each.number, text.format(each.new_id)) for each in batch]
                left += [
                    NotRedriven(number, "the disk is full or slow") for number in numbers[start + _BATCH :]
                ]
                break
            store.delete(each.number for each in batch)
            done += batch
        log.info("dead_letters.redriven", extra={"redriven": len(done), "left": len(left)})
        return RedriveResult(len(done), len(left), tuple(done[:MAX_LISTED]), tuple(left[:MAX_LISTED]))

    def _reject_call(self, number: int) -> None:
        kind = self._streamer.dead_letter_writer.store.get(number).message.attributes.type
        if kind in _CALLS:
            # The caller already has an error response, and would not recognize a response to another id.
            text = f"a {kind.name} is redriven by its number only"
            raise UStatusError(UCode.FAILED_PRECONDITION, text)


def _tap_filter(request: TapRequest) -> "TapFilter":
    """The filter of a tap request. Raises UStatusError(INVALID_ARGUMENT)."""
    from ustreamer.host.admin.taps import TapFilter

    source, sink = (None if text is None else UUri.parse(text) for text in (request.source, request.sink))
    verdicts = {each.name.lower(): each for each in Verdict}
    if request.verdict is not None and request.verdict not in verdicts:
        raise UStatusError(
            UCode.INVALID_ARGUMENT, f"verdict {request.verdict!r}: expected one of {', '.join(verdicts)}"
        )
    verdict = None if request.verdict is None else verdicts[request.verdict]
    types = {each.name.lower(): each for each in UMessageType}
    name = request.message_type
    if name is not None and name not in types:
        raise invalid_argument(f"type {name!r}: expected one of {', '.join(types)}")
    kind = None if name is None else types[name]
    return TapFilter(source, sink, verdict, request.payload, request.decode, kind, request.at)


def _reload_error(code: UCode, path: Path, problems: "tuple[str, ...] | list[str]") -> AdminError:
    log.error("control.reload_refused", extra={"config": str(path), "problems": list(problems)})
    return AdminError(code, f"{path}: not reloaded, nothing has changed", tuple(problems))


def _written_ms(path: Path) -> int | None:
    """When the file was written last, in ms since the epoch."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return None
