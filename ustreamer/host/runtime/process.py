# SPDX-License-Identifier: Apache-2.0
"""The life of the process: from a configuration file to a running streamer, to a reload or stop by signal."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ustreamer.host.admin.server import AdminServer
from ustreamer.host.config import config as configuration
from ustreamer.host.config.config import ConfigError, StreamerConfig
from ustreamer.host.config.document import TomlDocument
from ustreamer.host.config.observe import ObserveConfig
from ustreamer.host.runtime import plugins
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.control import Control
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.host.storage.state_lock import StateLock
from ustreamer.transport_port import TransportKind
from ustreamer.uprotocol.ustatus import UCode, UStatusError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from ustreamer.host.observe.http_server import HttpServer
    from ustreamer.host.observe.page import OperatorPage
    from ustreamer.host.observe.service_manager import ServiceManager

_SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread may hold the interpreter lock while others wait. Next to a busy thread, the default of 5 ms was
the p99 of a Zenoh put; with this value the p99 was 6 us.
"""


_ADMIN_JOIN_S: Final = 6.0  # a request in progress: longer than the line timeout of a client


class Loaded(msgspec.Struct, frozen=True):
    """A checked configuration, and the classes that it needs."""

    config: StreamerConfig
    kinds: Mapping[str, TransportKind]
    plugin_classes: Mapping[str, type[Any]]
    path: Path

    def streamer(self) -> Streamer:
        return Streamer(self.config, self.kinds, self.plugin_classes)


def load(path: Path) -> Loaded:
    """Read and check a configuration file. Raises ConfigError with every problem found, or PluginError.

    Imports the plugins that have a section. All installed plugins are imported only if the check fails with these: an
    endpoint can use a transport of a plugin without a section, and errors list everything installed.
    """
    return load_document(configuration.read(path))


def load_document(document: TomlDocument) -> Loaded:
    """As `load`, from a file that has been read."""
    try:
        return _load(document, document.data.get("plugins", {}))
    except ConfigError:
        return _load(document, None)


def _load(document: TomlDocument, plugin_names: Collection[str] | None) -> Loaded:
    """`load` with the plugins in `plugin_names`; with all installed plugins if it is None."""
    classes, broken = plugins.load_plugin_classes(plugin_names)
    for name in document.data.get("plugins", {}):
        if name in broken:
            raise broken[name]
    kinds = plugins.transport_kinds(plugins.class_plugin_manager(classes))
    config = configuration.check(document, kinds, {name: cls.Config for name, cls in classes.items()})
    return Loaded(config, kinds, {name: classes[name] for name in config.plugins}, document.file.absolute())


class Undelivered(NamedTuple):
    """Messages of a stop: not sent in time, and sent but not known to have arrived. Neither are on disk."""

    unsent: int
    unconfirmed: int


class Signals:
    """Signals as requests for the main thread. A second SIGTERM or SIGINT exits at once. SIGHUP requests a reload."""

    def __init__(self) -> None:
        # No Event: its lock is not reentrant, and a signal may arrive while the main thread holds that lock.
        self._wake: SimpleQueue[int] = SimpleQueue()
        self._stop_requested = False
        self._reload_requested = False

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, self._on_hangup)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._stop_requested:
            raise SystemExit(128 + number)
        self._stop_requested = True
        self._wake.put(number)

    def _on_hangup(self, number: int, _: FrameType | None) -> None:
        if not self._reload_requested:  # several pending signals cause one reload
            self._reload_requested = True
            self._wake.put(number)

    def wait(
        self, on_hangup: Callable[[], None] = lambda: None, on_tick: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for the first SIGTERM or SIGINT. Until then call `on_hangup` after every SIGHUP, `on_tick` twice a second."""
        while not self._stop_requested:
            on_tick()
            if self._reload_requested:
                self._reload_requested = False
                on_hangup()
            with suppress(Empty):
                # Bounded, because the handler runs on this thread: between two waits at the latest.
                self._wake.get(timeout=0.5)


def tune_interpreter() -> None:
    """Switch threads in short intervals: messages are small, and there are many threads."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def run(loaded: Loaded, drain_s: float, ready: Callable[[], None], audit: Path | None = None) -> Undelivered:
    """Run a streamer until SIGTERM or SIGINT; returns the number of messages unsent after `drain_s`, and unconfirmed.

    `ready` is called once every endpoint is up. Raises UStatusError if an endpoint fails to open, or if another
    streamer has locked the state directory, or if the file `audit` cannot be written.
    """
    signals = Signals()
    signals.install()
    tune_interpreter()
    streamer = loaded.streamer()
    control = Control(streamer, loaded.path, lambda path: load(path).config)
    with StateLock(loaded.config.state_dir), _auditing(audit, streamer):
        server = AdminServer(loaded.config.state_dir, control.handle_request, SYSTEM_CLOCK)
        observe, manager = observe_server(loaded.config, streamer, control), _service_manager(streamer)
        is_started, unsent = False, 0
        try:
            server.open()
            if observe is not None:
                observe.open()
            streamer.start()
            is_started = True
            server.start()
            if observe is not None:
                observe.start()
            gc.enable()  # the command line has disabled it for the start
            gc.freeze()  # what the start made stays: without it in each collection, a new topic costs a quarter less
            ready()
            _wait(signals, control, manager)
        finally:
            if manager is not None:
                manager.stopping()
            control.close()
            server.close(_ADMIN_JOIN_S)
            if observe is not None:
                observe.close(_ADMIN_JOIN_S)
            if is_started:
                unsent = streamer.stop(drain_s)
        return Undelivered(unsent, streamer.unconfirmed)


@contextmanager
def _auditing(path: Path | None, streamer: Streamer) -> Iterator[None]:
    """Write the audit log, if one is requested."""
    if path is None:
        yield
        return
    from ustreamer.host.runtime.audit import AuditLog

    with closing(AuditLog(path, SYSTEM_CLOCK.monotonic_ns)) as audit:
        streamer.audit = audit
        audit.start()
        yield


def _wait(signals: Signals, control: Control, manager: "ServiceManager | None") -> None:
    """Wait for the stop, and reload at each SIGHUP; notify the service manager of both."""
    if manager is None:
        signals.wait(control.on_sighup)
        return

    def reload() -> None:
        manager.reloading()
        control.on_sighup()
        manager.ready()

    manager.ready()
    signals.wait(reload, manager.tick)


def _service_manager(streamer: Streamer) -> "ServiceManager | None":
    """The service manager that started this process and expects notifications, systemd for example."""
    if not os.environ.get("NOTIFY_SOCKET"):
        return None
    from ustreamer.host.observe.service_manager import ServiceManager

    return ServiceManager(os.environ, streamer.receiving_threads, SYSTEM_CLOCK.monotonic_ns)


def observe_server(config: StreamerConfig, streamer: Streamer, control: Control) -> "HttpServer | None":
    """The server of metrics and health; None without `[observe]`, and then nothing of it is imported.

    Raises UStatusError(FAILED_PRECONDITION) if the token of the page cannot be read.
    """
    if config.observe is None:
        return None
    from ustreamer.host.observe.service import ObserveService

    page = _page(config.observe, config.base, streamer, control) if config.observe.page else None
    families: Callable[[], Iterable[Metric]] = tuple
    if config.observe.latency:
        from ustreamer.host.observe.latency import LatencyHistograms

        histograms = LatencyHistograms(SYSTEM_CLOCK.monotonic_ns)
        streamer.dispatcher.attach_taps(histograms.tap_at)
        families = histograms.families
    return ObserveService(config.observe, streamer.metrics_snapshot, SYSTEM_CLOCK, page, families).server


def _page(config: ObserveConfig, base: Path, streamer: Streamer, control: Control) -> "OperatorPage":
    from ustreamer.host.observe.page import OperatorPage
    from ustreamer.host.runtime.page_source import StreamerPageSource

    token = None
    if config.token is not None:
        try:
            token = config.token.read(os.environ, base)
        except ValueError as error:
            raise UStatusError(UCode.FAILED_PRECONDITION, f"observe.token.{error}") from error
    return OperatorPage(StreamerPageSource(streamer, control), token)
