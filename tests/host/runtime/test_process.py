# SPDX-License-Identifier: Apache-2.0
"""From a configuration file to a running streamer, and from a signal to its end."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ustreamer.host.admin.server import PluginsRequest, send_request
from ustreamer.host.config.config import ConfigError
from ustreamer.host.runtime import process
from ustreamer.host.runtime.plugins import PluginError
from ustreamer.host.runtime.process import Signals
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.host.storage.state_lock import StateLock
from ustreamer.transports.local.transport import LocalNetwork
from ustreamer.uprotocol.ustatus import UCode, UStatusError

HEAD = 'authority = "hpc"\nstate_dir = "state"\n'


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """Restores the process settings that a streamer changes."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    interval = sys.getswitchinterval()
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.setswitchinterval(interval)


@pytest.fixture
def network(tmp_path: Path) -> LocalNetwork:
    return LocalNetwork.named(tmp_path.name)


def written(directory: Path, text: str) -> Path:
    path = directory / "ustreamer.toml"
    path.write_text(text, encoding="utf-8")
    return path


def local(network: LocalNetwork) -> str:
    return f'[endpoints.a]\ntransport = "local"\nauthorities = ["hpc"]\nnetwork = "{network.name}"\n'


# --------------------------------------------------------------------------------------------------------------- load


def test_a_file_is_checked_against_all_plugins_and_loads_only_the_named_ones(
    tmp_path: Path, network: LocalNetwork
) -> None:
    loaded = process.load(written(tmp_path, HEAD + local(network) + "[plugins.throttle]\ntolerance = 0.2\n"))
    assert loaded.config.authority == "hpc"
    assert loaded.config.state_dir == tmp_path / "state"
    assert {"local", "zenoh", "someip"} <= loaded.kinds.keys()
    assert {name: cls.__name__ for name, cls in loaded.plugin_classes.items()} == {
        "throttle": "ThrottlePlugin"
    }
    assert list(loaded.streamer().transports) == ["self", "a"]


def test_every_problem_of_a_file_is_found_at_once(tmp_path: Path, network: LocalNetwork) -> None:
    path = written(tmp_path, HEAD + local(network) + "colour = 1\n[plugins.trottle]\n")
    with pytest.raises(ConfigError) as refused:
        process.load(path)
    assert [problem.line for problem in refused.value.problems] == [7, 8]


def test_an_unloadable_plugin_is_an_error_only_if_configured(
    tmp_path: Path, network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ustreamer]\nradar = no_such_module:Plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    process.load(written(tmp_path, HEAD + local(network)))  # not configured
    with pytest.raises(PluginError, match="plugin 'radar': cannot load 'no_such_module:Plugin'"):
        process.load(written(tmp_path, HEAD + local(network) + "[plugins.radar]\n"))


def test_an_endpoint_can_use_a_transport_of_a_plugin_without_a_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "radio_plugin.py").write_text(
        "from msgspec import Struct\n"
        "from ustreamer.hooks import hookimpl\n"
        "from ustreamer.transport_port import TransportKind\n"
        "from ustreamer.transports.local.config import LocalEndpoint\n"
        "from ustreamer.transports.local.transport import make_local_transport\n"
        "class Plugin:\n"
        "    class Config(Struct, frozen=True): ...\n"
        "    @staticmethod\n"
        "    @hookimpl\n"
        "    def ustreamer_transports():\n"
        "        return {'radio': TransportKind(LocalEndpoint, make_local_transport)}\n"
    )
    info = tmp_path / "radio-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: radio\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ustreamer]\nradio = radio_plugin:Plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    section = (
        '[endpoints.a]\ntransport = "radio"\nauthorities = ["car"]\nnetwork = "air"\n[plugins.throttle]\n'
    )
    loaded = process.load(written(tmp_path, HEAD + section))
    assert loaded.kinds.keys() >= {"radio", "local"}
    assert loaded.plugin_classes.keys() == {"throttle"}


# ------------------------------------------------------------------------------------------------------------ signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_ends_the_wait_and_the_second_one_the_process(number: signal.Signals) -> None:
    signals = Signals()
    signals.install()
    os.kill(os.getpid(), number)
    signals.wait()
    signals.wait()  # the request stays pending
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), number)
    assert ended.value.code == 128 + number


def test_a_signal_during_the_wait_ends_it_at_once() -> None:
    signals = Signals()
    signals.install()
    waiting = threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGTERM), daemon=True)
    waiting.start()
    signals.wait()
    waiting.join()


def test_a_hangup_is_reacted_to_and_ends_nothing() -> None:
    signals = Signals()
    signals.install()
    received: list[str] = []

    def on_hangup() -> None:
        received.append("hangup")
        os.kill(os.getpid(), signal.SIGTERM if len(received) == 2 else signal.SIGHUP)

    for _ in range(5):  # several signals before a wait count as one
        os.kill(os.getpid(), signal.SIGHUP)
    signals.wait(on_hangup)
    assert received == ["hangup", "hangup"]


# ---------------------------------------------------------------------------------------------------------------- run


def end_it() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_streamer_runs_until_a_signal_and_is_ready_only_when_its_endpoints_are_up(
    tmp_path: Path, network: LocalNetwork
) -> None:
    up: list[int] = []

    def ready() -> None:
        up.append(len(network.attached))
        end_it()

    before = threading.active_count()
    loaded = process.load(
        written(tmp_path, HEAD + local(network) + "[plugins.usubscription]\nmap_size_mb = 1\n")
    )
    assert process.run(loaded, 1.0, ready) == (0, 0)
    assert up == [1]
    assert network.attached == ()
    assert threading.active_count() == before


def test_a_streamer_that_fails_after_its_start_is_stopped(tmp_path: Path, network: LocalNetwork) -> None:
    def ready() -> None:
        raise ZeroDivisionError("on purpose")

    before = threading.active_count()
    loaded = process.load(written(tmp_path, HEAD + local(network)))
    with pytest.raises(ZeroDivisionError):
        process.run(loaded, 1.0, ready)
    assert network.attached == ()
    assert threading.active_count() == before


def test_threads_hand_over_quickly_while_a_streamer_runs(tmp_path: Path, network: LocalNetwork) -> None:
    intervals: list[float] = []

    def ready() -> None:
        intervals.append(sys.getswitchinterval())
        end_it()

    process.run(process.load(written(tmp_path, HEAD + local(network))), 1.0, ready)
    assert intervals == [pytest.approx(0.0005)]


def test_a_signal_during_start_is_not_lost(
    tmp_path: Path, network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = process.load(written(tmp_path, HEAD + local(network)))
    streamer = loaded.streamer()
    calls: list[str] = []
    start = streamer.start

    def start_and_request_stop() -> None:
        end_it()
        start()
        calls.append("started")

    monkeypatch.setattr(streamer, "start", start_and_request_stop)
    monkeypatch.setattr(process.Loaded, "streamer", lambda self: streamer)
    assert process.run(loaded, 1.0, lambda: calls.append("ready")) == (0, 0)
    assert calls == ["started", "ready"]


def test_an_endpoint_that_fails_to_open_ends_the_run(tmp_path: Path, network: LocalNetwork) -> None:
    network._max_attachments = 0
    ready: list[None] = []
    loaded = process.load(written(tmp_path, HEAD + local(network)))
    with pytest.raises(UStatusError) as refused:
        process.run(loaded, 1.0, lambda: ready.append(None))
    assert refused.value.code is UCode.UNAVAILABLE
    assert ready == []


def test_a_hangup_reloads_the_file_of_a_running_streamer(tmp_path: Path, network: LocalNetwork) -> None:
    path = written(tmp_path, HEAD + local(network))
    loaded = process.load(path)
    streamer = loaded.streamer()
    found: list[tuple[str, ...]] = []

    class Watched(process.Loaded, frozen=True):
        def streamer(self) -> Streamer:
            return streamer

    def changed() -> list[str]:
        [endpoint] = streamer.routes().endpoints
        return list(endpoint.authorities)

    def watch() -> None:
        end = time.monotonic() + 30
        while changed() == ["hpc"] and time.monotonic() < end:
            time.sleep(0.001)
        found.append(tuple(changed()))
        end_it()

    def ready() -> None:
        path.write_text(path.read_text().replace('"hpc"]', '"hpc", "car"]'))
        os.kill(os.getpid(), signal.SIGHUP)
        threading.Thread(target=watch).start()

    watched = Watched(loaded.config, loaded.kinds, loaded.plugin_classes, loaded.path)
    assert process.run(watched, 1.0, ready) == (0, 0)
    assert found == [("hpc", "car")]


def test_a_second_streamer_on_a_state_directory_does_not_start(tmp_path: Path, network: LocalNetwork) -> None:
    loaded = process.load(written(tmp_path, HEAD + local(network)))
    ready: list[None] = []
    with (
        StateLock(tmp_path / "state"),
        pytest.raises(UStatusError, match="expected no other streamer") as refused,
    ):
        process.run(loaded, 1.0, lambda: ready.append(None))
    assert refused.value.code is UCode.UNAVAILABLE
    assert ready == []


def test_there_is_an_admin_socket_from_ready_to_the_end(tmp_path: Path, network: LocalNetwork) -> None:
    answers: list[object] = []

    def ready() -> None:
        answers.append(send_request(tmp_path / "state", PluginsRequest()))
        end_it()

    assert process.run(process.load(written(tmp_path, HEAD + local(network))), 1.0, ready) == (0, 0)
    assert answers == [[]]
    assert not (tmp_path / "state" / "admin.sock").exists()
