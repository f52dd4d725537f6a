# SPDX-License-Identifier: Apache-2.0
"""`ustreamer check` refuses a configuration exactly if `ustreamer run` cannot start with it."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import zenoh

from tests.e2e.rigs.certificates import make_certificates
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.waiting import wait_until
from ustreamer.host.cli.check import check
from ustreamer.host.config.config import ConfigError
from ustreamer.host.runtime import process
from ustreamer.host.runtime.plugins import PluginError
from ustreamer.uprotocol.ustatus import UStatusError

CONFIG: Final = """\
authority = "hpc"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc", "ivi"]
mode = "peer"
listen = ["tcp/127.0.0.1:{zenoh}"]
retransmit_ms = 15000

[endpoints.inside]
transport = "local"
authorities = ["apps"]
network = "agreement"

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {someip}
sd = false
clients = ["127.0.0.0/8"]

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
methods = [0x0001]
remote = "127.0.0.1:{ecu}"

[[endpoints.chassis.services]]
service = 0x4001
major = 1
methods = [{{ id = 0x0001, protocol = "tcp" }}]
offered = true
provider = "//hpc/4001/1/0"

[observe]
listen = "127.0.0.1:{observe}"

[egress.default]
queue_messages = 10000
retry = {{ first_ms = 100, max_ms = 5000 }}

[plugins.throttle]
tolerance = 0.1
latest = ["//chassis/1234/1/8001"]
"""
VALUES: Final = (
    "0", "-1", "1", "70000", "0.5", "true", '"x"', '""', '"*"', '"~/x"', '"/dev/null"', "[]", '["*"]', "{}", "1979-05-27",
    '"127.0.0.1"', '"127.0.0.1:0"', '"192.0.2.1"', '["tcp/127.0.0.1:0"]', '["tcp/127.0.0.1:99999"]', '["udp/0.0.0.0:0"]',
    '["tcp/192.0.2.1:1"]', '"client"', '"router"', '"//*/FFFF/1/8001"', '["hpc", "cloud"]', '"local"', '"zenoh"',
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """Restores the process settings that a streamer changes."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    interval = sys.getswitchinterval()
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.setswitchinterval(interval)
    wait_until(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("egress ")],
        "the end of the egress threads",
    )


def broken(text: str, rng: random.Random) -> str:
    """The text after one to three changes of its lines. `state_dir` stays: its default is not for tests."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        index = rng.choice([n for n, line in enumerate(lines) if not line.startswith("state_dir")])
        name, equals, value = lines[index].partition(" = ")
        match rng.randrange(6):
            case 0:
                lines[index] = ""
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[index])
            case 2 if equals:
                lines[index] = f"{name} = {rng.choice(VALUES)}"
            case 3 if equals:
                other = rng.choice([line for line in lines if " = " in line])
                lines[index] = f"{name} = {other.partition(' = ')[2]}"
            case 4 if lines[index]:
                at = rng.randrange(len(lines[index]))
                lines[index] = (
                    lines[index][:at] + rng.choice(("", "x", '"', "7", "]")) + lines[index][at + 1 :]
                )
            case _ if equals:
                lines[index] = f"{name} = {value.replace('127.0.0.1', '127.0.0.2').replace('7', '8')}"
    return "\n".join(lines)


def start_error(path: Path) -> Exception | None:
    """The refusal of a start with this file; None after a start and a stop."""
    try:
        process.run(process.load(path), 0.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    except (ConfigError, PluginError, UStatusError) as error:
        return error
    return None


def verdicts(path: Path) -> tuple[list[str], Exception | None]:
    """The problems of a check, and the refusal of a start.

    If they differ, both run again: another process may have used a port of a changed number meanwhile.
    """
    problems: list[str] = []
    error: Exception | None = None
    for _ in range(3):
        problems = [str(each) for each in check(path, offline=False).problems]
        error = start_error(path)
        if bool(problems) is (error is not None):
            break
    return problems, error


@pytest.mark.parametrize("files", [50, pytest.param(500, marks=pytest.mark.soak)])
def test_check_and_the_start_of_run_agree_on_random_broken_files(tmp_path: Path, files: int) -> None:
    rng = random.Random(files)
    zenoh, observe, *_ = tcp_ports(2)
    someip, ecu = udp_ports(2)
    text = CONFIG.format(zenoh=zenoh, observe=observe, someip=someip, ecu=ecu)
    accepted = 0
    for number in range(files):
        path = tmp_path / f"{number}.toml"
        path.write_text(text if number == 0 else broken(text, rng), encoding="utf-8")
        problems, error = verdicts(path)
        assert bool(problems) is (error is not None), f"{path.read_text()}\n{problems}\n{error!r}"
        accepted += not problems
    assert 0 < accepted < files


# --- sockets as files ------------------------------------------------------------------------------------------------

HEAD: Final = 'authority = "hpc"\nstate_dir = "state"\n'
ZENOH_SOCKET: Final = (
    '[endpoints.{0}]\ntransport = "zenoh"\nauthorities = ["{0}"]\nlisten = ["unixsock-stream/{1}"]\n'
)
WAMP_SOCKET: Final = '[plugins.wamp]\nlisten = "ws+unix://{}"\nanonymous = true\n'


def agreed(path: Path) -> list[str]:
    """The problems of a check, after a start that was refused exactly if there are some."""
    problems, error = verdicts(path)
    assert bool(problems) is (error is not None), f"{path.read_text()}\n{problems}\n{error!r}"
    return problems


def left_behind(path: Path) -> None:
    """The socket file of a killed process."""
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


@pytest.mark.parametrize(
    "section",
    [
        ZENOH_SOCKET.format("a", "{}"),
        WAMP_SOCKET + '[endpoints.a]\ntransport = "local"\nnetwork = "agreement"\nauthorities = ["a"]\n',
    ],
    ids=["zenoh", "wamp"],
)
def test_only_a_stale_socket_is_replaced(tmp_path: Path, section: str) -> None:
    place, config = tmp_path / "s", tmp_path / "ustreamer.toml"
    config.write_text(HEAD + section.format(place), encoding="utf-8")
    place.write_text("kept")
    [problem] = agreed(config)
    assert f"{place} is no socket: expected a free path" in problem
    assert place.read_text() == "kept"
    place.unlink()
    left_behind(place)
    assert agreed(config) == []
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place))
        other.listen()
        [problem] = agreed(config)
        assert f"another process listens at {place}" in problem
        assert place.is_socket()


def test_a_file_with_the_name_of_zenohs_lock_stays(tmp_path: Path) -> None:
    place, lock, config = tmp_path / "poetry", tmp_path / "poetry.lock", tmp_path / "ustreamer.toml"
    config.write_text(HEAD + ZENOH_SOCKET.format("a", place), encoding="utf-8")
    lock.write_text("kept")
    [problem] = agreed(config)
    assert f"{lock} is no lock file of a socket" in problem
    assert lock.read_text() == "kept"
    lock.write_text("")
    left_behind(place)
    assert agreed(config) == []


# --- addresses -------------------------------------------------------------------------------------------------------

ZENOH: Final = '[endpoints.{0}]\ntransport = "zenoh"\nauthorities = ["{0}"]\nlisten = ["{1}"]\n'
SOMEIP: Final = (
    '[endpoints.s]\ntransport = "someip"\nauthorities = ["s"]\nbind = "{}"\nport = {}\nsd = false\n'
)
OBSERVE: Final = '[observe]\nlisten = "{}"\n'
WAMP: Final = '[plugins.wamp]\nlisten = "{}"\nanonymous = true\n'
LOCAL: Final = '[endpoints.l]\ntransport = "local"\nauthorities = ["l"]\nnetwork = "agreement"\n'
ADDRESSES: Final = (
    ("tcp/127.0.0.1:{p}", "tcp/[::]:{p}", False),
    ("tcp/[::]:{p}", "tcp/0.0.0.0:{p}", False),
    ("tcp/0.0.0.0:{p}", "tcp/[::1]:{p}", True),
    ("tcp/127.0.0.1:{p}", "udp/127.0.0.1:{p}", True),
    ("udp/localhost:{p}", "udp/[::]:{p}", False),
    ("udp/[::]:{p}", ("someip", "127.0.0.1"), False),
    ("udp/[::]:{p}", ("someip", "::"), False),
    ("udp/0.0.0.0:{p}", ("someip", "::"), True),
    ("udp/127.0.0.1:{p}", ("someip", "::"), True),
    ("ws/[::]:{p}", "observe", False),
    ("ws/[::1]:{p}", "observe", True),
    ("tcp/127.0.0.1:{p}", "wamp", False),
    ("tcp/127.0.0.1:0", "tcp/[::]:0", True),
    ("unixsock-stream/{d}/z", "unixsock-stream/{d}/./z", False),
    ("unixsock-stream/{d}/z", "unixsock-stream/{d}/link/z", False),
    ("unixsock-stream/{d}/z", "unixsock-stream/{d}/y", True),
)


@pytest.mark.parametrize(("first", "second", "starts"), ADDRESSES)
def test_check_and_run_agree_on_two_listening_addresses(
    tmp_path: Path, first: str, second: str | tuple[str, str], starts: bool
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    port = (udp_ports if first.startswith("udp") else tcp_ports)(1)[0]
    values = {"p": port, "d": tmp_path}
    match second:
        case ("someip", bind):
            section = SOMEIP.format(bind, port)
        case "observe":
            section = OBSERVE.format(f"127.0.0.1:{port}")
        case "wamp":
            section = WAMP.format(f"ws://[::]:{port}/ws")
        case locator:
            section = ZENOH.format("b", str(locator).format(**values))
    path = tmp_path / "ustreamer.toml"
    path.write_text(HEAD + ZENOH.format("a", first.format(**values)) + section, encoding="utf-8")
    problems = agreed(path)
    assert bool(problems) is not starts, problems
    assert starts or " is bound by endpoints.a.listen[0] (line 6)" in problems[0]


@pytest.mark.parametrize(
    ("keys", "starts"),
    [
        ('listen = ["tcp/127.0.0.1:0#iface=nosuch0"]', False),
        ('listen = ["udp/127.0.0.1:0#iface=lo,nosuch0"]', False),
        ('listen = ["tcp/127.0.0.1:0#iface=lo"]', True),
        ('listen = ["ws/127.0.0.1:0#iface=nosuch0"]', True),
        ('mode = "client"\nconnect = ["tcp/127.0.0.1:{p}#iface=nosuch0"]', False),
        ('mode = "client"\nconnect = ["tcp/127.0.0.1:{p}#iface=nosuch0", "tcp/127.0.0.1:{p}"]', True),
        ('connect = ["tcp/127.0.0.1:{p}#iface=nosuch0"]', True),
    ],
)
def test_check_and_run_agree_on_a_missing_interface(tmp_path: Path, keys: str, starts: bool) -> None:
    path = tmp_path / "ustreamer.toml"
    settings = zenoh.Config()
    [port] = tcp_ports(1)
    settings.insert_json5("listen/endpoints", f'["tcp/127.0.0.1:{port}"]')
    section = (
        '[endpoints.a]\ntransport = "zenoh"\nauthorities = ["a"]\n' + keys.replace("{p}", str(port)) + "\n"
    )
    path.write_text(HEAD + section, encoding="utf-8")
    with zenoh.open(settings):
        problems = agreed(path)
    assert bool(problems) is not starts, problems
    assert starts or problems[0].endswith("this machine has no interface 'nosuch0'")
    warned = [each.text for each in check(path, offline=False).warnings if "no interface" in each.text]
    assert bool(warned) is ("connect" in keys)


@pytest.mark.parametrize("scheme", ["wss", "ws"])
@pytest.mark.parametrize("content", ["valid", "no PEM", "password", "missing"])
def test_check_and_run_agree_on_a_certificate(tmp_path: Path, scheme: str, content: str) -> None:
    make_certificates(tmp_path, "router")
    key = tmp_path / "router.key"
    if content == "no PEM":
        key.write_text("no PEM", encoding="utf-8")
    elif content == "password":
        command = [
            "openssl",
            "pkey",
            "-in",
            str(key),
            "-out",
            f"{key}.new",
            "-aes256",
            "-passout",
            "pass:secret",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        Path(f"{key}.new").rename(key)
    elif content == "missing":
        key.unlink()
    files = f'tls = {{ certificate = "{tmp_path}/router.pem", key = "{key}" }}\n'
    path = tmp_path / "ustreamer.toml"
    path.write_text(HEAD + LOCAL + WAMP.format(f"{scheme}://127.0.0.1:0/ws") + files, encoding="utf-8")
    problems = agreed(path)
    assert bool(problems) is (scheme == "wss" and content != "valid"), problems
    assert not problems or str(key) in problems[0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"listen_certificate": "text"}, "expected PEM"),
        ({"listen_private_key": "none"}, "No such file"),
        ({"listen_private_key": "other.key"}, "mismatch"),
        ({"listen_private_key": None}, "needs transport/link/tls/listen_private_key"),
        ({"enable_mtls": True}, "needs transport/link/tls/root_ca_certificate"),
        ({"enable_mtls": True, "root_ca_certificate": "text"}, "expected PEM"),
        ({"enable_mtls": True, "root_ca_certificate": "ca.pem"}, ""),
        ({"root_ca_certificate": "none"}, ""),
    ],
)
def test_check_and_run_agree_on_the_certificates_of_zenoh(
    tmp_path: Path, change: dict[str, object], problem: str
) -> None:
    make_certificates(tmp_path, "router", "other")
    (tmp_path / "text").write_text("no PEM", encoding="utf-8")
    keys = {"listen_certificate": "router.pem", "listen_private_key": "router.key", **change}
    tls = {key: f"{tmp_path}/{value}" if isinstance(value, str) else value for key, value in keys.items()}
    settings = {
        "mode": "peer",
        "listen": {"endpoints": ["tls/127.0.0.1:0"]},
        "transport": {"link": {"tls": tls}},
    }
    (tmp_path / "zenoh.json5").write_text(json.dumps(settings), encoding="utf-8")
    path = tmp_path / "ustreamer.toml"
    section = '[endpoints.a]\ntransport = "zenoh"\nauthorities = ["a"]\nconfig = "zenoh.json5"\n'
    path.write_text(HEAD + section, encoding="utf-8")
    problems = agreed(path)
    assert bool(problems) is bool(problem), problems
    assert not problems or problem.lower() in problems[0].lower()
