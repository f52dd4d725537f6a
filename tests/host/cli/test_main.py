# SPDX-License-Identifier: Apache-2.0
"""The command line: its output, and its exit codes."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rigs.ports import udp_ports
from ustreamer import __version__
from ustreamer.host.cli.main import ExitCode, main
from ustreamer.host.demo import command
from ustreamer.host.runtime import plugins
from ustreamer.uprotocol.ustatus import UCode

DEADLINE_S = 30.0
COMMANDS = (
    "run",
    "check",
    "config",
    "explain",
    "why",
    "plugins",
    "demo",
    "attack",
    "reload",
    "routes",
    "top",
    "tap",
    "dead-letters",
    "import",
    "new",
    "completion",
)
HEAD = 'authority = "hpc"\nstate_dir = "state"\n'
LOCAL = '[endpoints.a]\ntransport = "local"\nnetwork = "cli"\nauthorities = ["hpc"]\n'
SOMEIP = """\
[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {port}
sd = false
"""

TESTER = '''\
import os, signal, sys, threading
import msgspec
from ustreamer.hooks import hookimpl
from ustreamer.transport_port import EndpointConfig, EndpointTransport, TransportKind
from ustreamer.uprotocol import UCode, UPayloadFormat, UStatusError, UuidSource, UUri
from ustreamer.uprotocol.umessage import notification

class Down(EndpointTransport):
    """A link that is down: what is sent there stays in the queue."""
    def __init__(self, config, context): pass
    def open(self): pass
    def stop_receiving(self): pass
    def close(self): pass
    def register_listener(self, source_filter, sink_filter, listener): pass
    def unregister_listener(self, source_filter, sink_filter, listener): pass
    def statistics(self): return {}
    def send(self, message):
        raise UStatusError(UCode.UNAVAILABLE, "link down")

class Plugin:
    class Config(msgspec.Struct, frozen=True):
        fails_with: int = 0
        messages: int = 0
        ends_itself: bool = False
        dawdles: bool = False

    def __init__(self, config, context):
        if config.fails_with:
            raise UStatusError(UCode(config.fails_with), "as the configuration says")
        self.config = config
        self.ids = UuidSource(context.clock.wall_ms)

    @staticmethod
    @hookimpl
    def ustreamer_transports():
        return {"down": TransportKind(EndpointConfig, Down)}

    @hookimpl
    def ustreamer_started(self, dispatcher):
        for _ in range(self.config.messages):
            message = notification(self.ids.next(), UUri("hpc", 1, 1, 0x8000), UUri("cloud", 1, 1, 0))
            dispatcher.ingress("a").dispatch(message)
        if self.config.ends_itself:
            os.kill(os.getpid(), signal.SIGTERM)

    @hookimpl
    def ustreamer_stopping(self):
        if self.config.dawdles:
            print("STOPPING", flush=True)
            threading.Event().wait(60)
'''

COMMANDS_OF_TESTER = """
def add_commands(commands, read_stored_messages, open_networks, request_plugin, load_routing):
    greet = commands.add_parser("greet", help="say hello")
    greet.add_argument("--name", default="world")
    greet.set_defaults(run=lambda arguments: print(f"hello {arguments.name}") or 3)
"""


# ------------------------------------------------------------------------------------------------------------- running


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores process settings after a command, and sets a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    log = logging.getLogger("ustreamer")
    before = log.handlers[:], log.level, log.propagate
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    interval = sys.getswitchinterval()
    yield
    log.handlers[:], log.level, log.propagate = before
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.setswitchinterval(interval)


@pytest.fixture
def tester(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The plugin above, installed in its own directory."""
    site = tmp_path / "site"
    info = site / "plug_tester-1.0.dist-info"
    info.mkdir(parents=True)
    package = site / "cli_tester"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text(TESTER)
    (package / "commands.py").write_text(COMMANDS_OF_TESTER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-tester\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ustreamer]\ntester = cli_tester.plugin:Plugin\n")
    monkeypatch.syspath_prepend(site)
    yield site
    for module in ("cli_tester", "cli_tester.plugin", "cli_tester.commands"):
        sys.modules.pop(module, None)


Written = Callable[..., str]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(*parts: str) -> str:
        path = tmp_path / "ustreamer.toml"
        path.write_text("\n".join((HEAD, *parts)), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def port() -> int:
    return udp_ports(1)[0]


def ended(*arguments: str) -> int:
    """The exit code of a command, also where argparse ends the process."""
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


Output = pytest.CaptureFixture[str]


MAIN = "import sys; from ustreamer.host.cli.main import main; sys.exit(main())"


def process(*arguments: str, site: Path | None = None, code: str = MAIN, **how: Any) -> subprocess.Popen[str]:
    paths = [str(site)] if site else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    environment.pop("PYTHONUNBUFFERED", None)  # some containers set it, which hides a missing flush
    how.setdefault("stdout", subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True, env=environment, **how
    )


# -------------------------------------------------------------------------------------------------------- help and usage


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_of_every_command_fits_on_a_screen(command: str, capsys: Output) -> None:
    assert ended(*command.split(), "--help") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert 2 < len(lines) < 25
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"usage: ustreamer {command}".rstrip())
    assert err == ""


def test_the_help_lists_every_command_with_a_sentence(tester: Path, capsys: Output) -> None:
    ended("--help")
    out = capsys.readouterr().out
    listed = re.findall(r"^    ([\w-]+)\s+(\w.+)$", out, re.MULTILINE)
    names = [name for name, _ in listed]
    assert names[: len(COMMANDS)] == [*COMMANDS]
    assert "greet" in names[len(COMMANDS) :]
    assert all(len(words.split()) > 1 for _, words in listed)


def test_the_version_is_printed(capsys: Output) -> None:
    assert ended("--version") == 0
    assert capsys.readouterr().out == f"ustreamer {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "fly",
        "run",
        "run a.toml b.toml",
        "run a.toml --log-format xml",
        "run a.toml --log-level loud",
        "run a.toml --drain soon",
        "run a.toml --drain nan",
        "run a.toml --drain inf",
        "run a.toml --drain=-1",
        "check",
        "check a.toml --online",
        "plugins x y",
        "demo --seconds ten",
        "demo --seconds nan",
        "demo --seconds inf",
        "demo --seconds=-1",
    ],
)
def test_invalid_usage_ends_with_2_and_prints_the_usage(
    arguments: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run", lambda **_: 0)
    assert ended(*arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: ustreamer")


def test_the_exit_codes_match_the_conventions_of_supervisors() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "FAILURE": 1,
        "USAGE": 2,
        "UNAVAILABLE": 69,
        "STORE_DAMAGED": 74,
        "NOT_DRAINED": 75,
        "DENIED": 77,
        "BAD_CONFIG": 78,
        "INTERRUPTED": 130,
    }


# ---------------------------------------------------------------------------------------------------------------- check


def test_a_valid_configuration_is_ok(written: Written, capsys: Output) -> None:
    path = written(LOCAL, "[plugins.throttle]\n[plugins.usubscription]")
    assert ended("check", path, "--strict") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"{path}: OK (file, routes, environment)"
    assert err == ""


def test_a_warning_is_printed_and_fails_a_strict_check_only(written: Written, capsys: Output) -> None:
    path = written(LOCAL)
    assert ended("check", path) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"{path}: OK (file, routes, environment)"
    assert err == (
        f"{path}:1:1: plugins.usubscription: warning: no plugin holds subscriptions, so a publication reaches configured receivers only; "
        "add [plugins.usubscription]\n"
    )
    assert ended("check", path, "--strict") == 78
    assert capsys.readouterr() == ("", err)


def test_offline_is_passed_on(written: Written, capsys: Output) -> None:
    path = written(LOCAL)
    assert ended("check", path, "--offline") == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{path}: OK (file, routes)"


def test_an_invalid_configuration_ends_with_78_and_prints_its_problems_to_stderr(
    written: Written, capsys: Output
) -> None:
    path = written(LOCAL, "colour = 1", "[plugins.trottle]")
    assert ended("check", path) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(": ")[0] for line in err.splitlines()] == [f"{path}:9:1", f"{path}:10:1"]


@pytest.mark.parametrize(("text", "code", "problems"), [(LOCAL, 0, 0), (LOCAL + "colour = 1", 78, 1)])
def test_a_report_for_machines_is_one_json_object_on_stdout(
    written: Written, capsys: Output, text: str, code: int, problems: int
) -> None:
    path = written(text)
    assert ended("check", path, "--json") == code
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["file"] == path
    assert report["stages"] == ([] if problems else ["file", "routes", "environment"])
    assert len(report["problems"]) == problems
    assert report.keys() == {
        *("file", "stages", "problems", "warnings", "authority", "serves", "endpoints", "plugins")
    }
    for each in report["problems"]:
        assert each == {
            "file": path,
            "line": 8,
            "column": 1,
            "path": "endpoints.a.colour",
            "value": "1",
            "text": "unknown key (have: access, authorities, duplicate_window, durable, network, transport)",
            "suggestion": "leave colour out",
        }
    assert err == ""


# -------------------------------------------------------------------------------------------------------------- plugins


def test_plugins_are_listed_with_their_hooks(tester: Path, capsys: Output) -> None:
    assert ended("plugins") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(plugins.installed_plugins())
    [line] = [line for line in lines if line.startswith("tester ")]
    assert line.split() == [
        "tester",
        "plug-tester",
        "1.0",
        "ustreamer_transports",
        "ustreamer_started",
        "ustreamer_stopping",
    ]


def test_plugins_are_listed_for_machines(tester: Path, capsys: Output) -> None:
    assert ended("plugins", "--json") == 0
    listed = {each.pop("name"): each for each in json.loads(capsys.readouterr().out)}
    assert {"throttle", "usubscription", "tester"} <= listed.keys()
    assert listed["throttle"]["hooks"] == ["ustreamer_filters"]
    assert listed["tester"]["distribution"] == "plug-tester"
    assert listed["tester"]["version"] == "1.0"


def test_a_missing_plugin_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(plugins, "installed_plugins", dict)
    assert ended("plugins") == 0
    assert capsys.readouterr().out == "no plugins installed\n"
    assert ended("plugins", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_plugin_adds_a_command_whose_return_value_is_the_exit_code(tester: Path, capsys: Output) -> None:
    assert ended("greet", "--name", "hpc") == 3
    assert capsys.readouterr().out == "hello hpc\n"


def test_an_unloadable_plugin_is_reported_and_blocks_no_command(tester: Path, capsys: Output) -> None:
    (tester / "cli_tester" / "plugin.py").write_text("import no_such_library")
    assert ended("plugins") == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("warning: plugin 'tester': cannot load 'cli_tester.plugin:Plugin'")
    assert "usubscription" in shown.out


def test_a_plugin_whose_commands_cannot_be_imported_blocks_no_other(tester: Path, capsys: Output) -> None:
    (tester / "cli_tester" / "commands.py").write_text("import no_such_library")
    assert ended("--help") == 0
    shown = capsys.readouterr()
    assert shown.err == "warning: cli_tester.commands adds no command: No module named 'no_such_library'\n"
    assert "recordings" in shown.out


# ----------------------------------------------------------------------------------------------------------------- demo


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "",
            {
                "seconds": 10.0,
                "as_json": False,
                "recordings": None,
                "web": None,
                "metrics": None,
                "strict": False,
            },
        ),
        (
            "--seconds 0.5 --json",
            {
                "seconds": 0.5,
                "as_json": True,
                "recordings": None,
                "web": None,
                "metrics": None,
                "strict": False,
            },
        ),
        (
            "--recordings kept --strict",
            {
                "seconds": 10.0,
                "as_json": False,
                "recordings": Path("kept"),
                "web": None,
                "metrics": None,
                "strict": True,
            },
        ),
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_the_demo_takes_duration_and_output_format(
    monkeypatch: pytest.MonkeyPatch, arguments: str, expected: dict[str, object], code: int
) -> None:
    notified: list[dict[str, object]] = []

    def run(**how: object) -> int:
        notified.append(how)
        return code

    monkeypatch.setattr(command, "run", run)
    assert ended("demo", *arguments.split()) == code
    assert notified == [expected]


# ------------------------------------------------------------------------------------------------------------------ run


def test_a_file_that_is_not_there_ends_with_78(tmp_path: Path, capsys: Output) -> None:
    assert ended("run", str(tmp_path / "none.toml")) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert "none.toml" in err


def test_every_problem_of_a_configuration_is_a_line_on_stderr(written: Written, capsys: Output) -> None:
    path = written(LOCAL, "colour = 1", "[plugins.trottle]")
    assert ended("run", path) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(": ")[0] for line in err.splitlines()] == [f"{path}:9:1", f"{path}:10:1"]


def test_an_endpoint_that_cannot_be_opened_ends_with_69_and_there_is_no_ready(
    written: Written, capsys: Output
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert ended("run", written(LOCAL, SOMEIP.format(port=port))) == 69
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("UNAVAILABLE: ")
    assert str(port) in err
    assert "Traceback" not in err


def test_a_damaged_store_ends_with_74(written: Written, tmp_path: Path, capsys: Output) -> None:
    store = tmp_path / "state" / "usubscription"
    store.mkdir(parents=True)
    (store / "data.mdb").write_bytes(b"no store" * 4096)
    assert ended("run", written(LOCAL, '[plugins.usubscription]\ndamaged = "refuse"')) == 74
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("DATA_LOSS: ")
    assert str(store) in err


EXITS = {
    UCode.UNAVAILABLE: 69,
    UCode.DATA_LOSS: 74,
    UCode.PERMISSION_DENIED: 77,
    UCode.INVALID_ARGUMENT: 78,
    UCode.UNIMPLEMENTED: 78,
    UCode.FAILED_PRECONDITION: 78,  # for example a state directory of a newer version
}


@pytest.mark.parametrize("code", [code for code in UCode if code is not UCode.OK])
def test_a_failed_run_ends_with_the_exit_code_of_its_reason(
    tester: Path, written: Written, capsys: Output, code: UCode
) -> None:
    assert ended("run", written(LOCAL, f"[plugins.tester]\nfails_with = {int(code)}")) == EXITS.get(code, 1)
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"{code.name}: as the configuration says\n")


def test_a_streamer_without_unsent_messages_ends_with_0(
    tester: Path, written: Written, capfd: Output
) -> None:
    assert ended("run", written(LOCAL, "[plugins.tester]\nends_itself = true")) == 0
    assert capfd.readouterr().out == "READY\n"


def test_unsent_messages_after_the_drain_time_end_with_75(
    tester: Path, written: Written, capfd: Output
) -> None:
    down = '[endpoints.b]\ntransport = "down"\nauthorities = ["cloud"]'
    tester_that_ends = "[plugins.tester]\nends_itself = true"
    began = time.monotonic()
    assert ended("run", written(LOCAL, down, tester_that_ends)) == 0
    nothing_to_send_s = time.monotonic() - began
    capfd.readouterr()
    path = written(LOCAL, down, f"{tester_that_ends}\nmessages = 3")
    began = time.monotonic()
    assert ended("run", path, "--drain", "0.05") == 75
    # Without the option it would be 5.
    assert 0.05 <= time.monotonic() - began < nothing_to_send_s + 4.0
    out, err = capfd.readouterr()
    assert out == "READY\n"
    assert err.splitlines()[-1] == "3 messages were not sent within 0.05 s"


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ("", r"\d\d:\d\d:\d\d\.\d{3} INFO streamer.started authority=hpc endpoints=\['a'\]"),
        (
            "--log-format json",
            r'\{"time": .*"event": "streamer.started", "authority": "hpc", "endpoints": \["a"\]\}',
        ),
        ("--log-level warning", None),
    ],
)
def test_the_log_is_written_to_stderr_in_the_given_format(
    tester: Path, written: Written, capfd: Output, arguments: str, form: str | None
) -> None:
    path = written(LOCAL, "[plugins.tester]\nends_itself = true")
    assert ended("run", path, *arguments.split()) == 0
    out, err = capfd.readouterr()
    assert out == "READY\n"
    if form is None:
        assert err == ""
    else:
        assert re.fullmatch(form, err.splitlines()[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_streamer_prints_ready_once_and_ends_with_0_on_a_signal(
    written: Written, port: int, number: signal.Signals
) -> None:
    running = process("run", written(SOMEIP.format(port=port), LOCAL), "--log-format", "json")
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "READY\n"
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
            pytest.raises(OSError, match="in use"),
        ):
            other.bind(("127.0.0.1", port))
        running.send_signal(number)
        out, err = running.communicate(timeout=DEADLINE_S)
    finally:
        running.kill()
        running.wait()
    assert (out, running.returncode) == ("", 0)
    lines = err.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["streamer.started", "streamer.stopped"]
    assert len(lines[-1]) < 600


HANGUP_AT_AN_IMPORT = """
import os, signal, sys
class Hangup:
    def find_spec(self, name, *_):
        if name == "ustreamer.host.runtime.process":
            os.kill(os.getpid(), signal.SIGHUP)
sys.meta_path.insert(0, Hangup())
"""


def test_a_request_to_reload_does_not_end_a_streamer_that_starts(written: Written) -> None:
    with process("run", written(LOCAL), code=HANGUP_AT_AN_IMPORT + MAIN) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "READY\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(DEADLINE_S) == 0


def test_the_second_signal_ends_the_process_at_once(tester: Path, written: Written) -> None:
    path = written(LOCAL, "[plugins.tester]\ndawdles = true")
    running = process("run", path, "--drain", "60", site=tester)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "READY\n"
        running.send_signal(signal.SIGTERM)
        assert running.stdout.readline() == "STOPPING\n"
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=DEADLINE_S)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err


def test_a_closed_output_pipe_causes_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        running = process("plugins", "--json", stdout=writing)
        _, err = running.communicate(timeout=DEADLINE_S)
    finally:
        os.close(writing)
    assert err == ""
    assert running.returncode == ExitCode.FAILURE


def test_a_streamer_whose_output_pipe_is_closed_stops_at_ready(written: Written) -> None:
    """Nothing supervises it any more, as nothing reads READY."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        running = process("run", written(LOCAL), "--log-format", "json", stdout=writing)
        _, err = running.communicate(timeout=DEADLINE_S)
    finally:
        os.close(writing)
        running.kill()
        running.wait()
    assert running.returncode == ExitCode.FAILURE
    assert [json.loads(line)["event"] for line in err.splitlines()][-1] == "streamer.stopped"


def test_output_that_cannot_be_written_is_an_error_of_one_line() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        running = process("plugins", "--json", stdout=full)
        _, err = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, err) == (
        ExitCode.FAILURE,
        "cannot write the output: No space left on device\n",
    )


def test_a_command_with_a_closed_output_ends_normally() -> None:
    running = process("plugins", "--json", stdout=None, preexec_fn=lambda: os.close(1))
    _, err = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, err) == (ExitCode.OK, "")


def test_output_to_a_file_on_a_full_disk_ends_no_streamer(written: Written) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        running = process("run", written(LOCAL), "--log-format", "json", stdout=full)
    try:
        assert running.stderr is not None
        events = [json.loads(running.stderr.readline())["event"] for _ in range(2)]
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=DEADLINE_S)
    finally:
        running.kill()
        running.wait()
    assert (events, running.returncode) == (["streamer.started", "streamer.ready_not_printed"], 0)
    assert json.loads(err)["event"] == "streamer.stopped"


# ------------------------------------------------------------------------------------------------- the base installation


WITHOUT: str = """\
import sys
sys.modules.update({name: None for name in ("zenoh", "rich")})
from ustreamer.host.cli.main import main
from ustreamer.host.runtime import plugins
plugins.installed_plugins = dict
sys.exit(main())
"""
"""The command line as if only the distribution `ustreamer` were installed, without extras and plugins."""


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (
            ["demo"],
            69,
            (
                "the demo needs the wheel files of ustreamer[zenoh,cli] ustreamer-payloads "
                "ustreamer-recorder ustreamer-throttle ustreamer-usubscription: docs/install.md\n"
            ),
        ),
        (
            ["run", "CONFIG"],
            78,
            (
                "endpoint 'b': transport zenoh needs the package eclipse-zenoh "
                "(install the wheel file of ustreamer[zenoh]: docs/install.md)\n"
            ),
        ),
        (["check", "CONFIG"], 78, "(install the wheel file of ustreamer[zenoh]: docs/install.md)\n"),
        (["plugins"], 0, ""),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_without_extras_a_command_ends_with_a_sentence(
    written: Written, arguments: list[str], code: int, sentence: str
) -> None:
    zenoh = '[endpoints.b]\ntransport = "zenoh"\nauthorities = ["hpc"]\nlisten = ["tcp/127.0.0.1:0"]\n'
    path = written(zenoh)
    words = [path if each == "CONFIG" else each for each in arguments]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    assert done.stderr.endswith(sentence)
    assert bool(done.stderr) is bool(sentence)


def test_an_interrupt_while_a_streamer_starts_ends_it_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def interrupted(_: Path) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("ustreamer.host.runtime.process.load", interrupted)
    assert ended("run", str(tmp_path / "u.toml")) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == ""
