# SPDX-License-Identifier: Apache-2.0
"""A command imports only what it needs; `ustreamer run` also only what its configuration needs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from ustreamer.host.cli.main import parser

CONFIG: Final = Path(__file__).parents[3] / "configs" / "minimal.toml"
MAX_OWN_MODULES: Final = 242
"""242 today, 0.25 ms of the start each. Raise it only for what every streamer needs; import the rest on demand."""
LOADED: Final = """\
import sys
from pathlib import Path
from ustreamer.host.cli.main import parser
from ustreamer.host.runtime import process
arguments = parser("run").parse_args(["run", sys.argv[1]])
process.load(arguments.config).streamer()
print(*sys.modules)
"""

HELP: Final = """\
import json, sys
from contextlib import suppress
from ustreamer.host.cli.main import main
with suppress(SystemExit):
    main(["--help"])
print(json.dumps(list(sys.modules)))
"""
CHECK: Final = """\
import json, sys
from ustreamer.host.cli.main import parser
parser("check").parse_args(["check", "vehicle.toml"])
print(json.dumps(list(sys.modules)))
"""


@pytest.fixture(scope="module")
def loaded() -> frozenset[str]:
    """The modules of a process that has built the streamer of configs/minimal.toml."""
    command = [sys.executable, "-c", LOADED, str(CONFIG)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return frozenset(shown.stdout.split())


def test_a_streamer_loads_what_its_configuration_names(loaded: frozenset[str]) -> None:
    assert loaded >= {
        "ustreamer_throttle.plugin",
        "ustreamer_usubscription.plugin",
        "ustreamer.transports.someip.endpoint.transport",
        "ustreamer.transports.zenoh.transport",
    }


@pytest.mark.parametrize(
    "module",
    [
        "_hashlib",  # OpenSSL
        "asyncio",
        "concurrent.futures",
        "ctypes",
        "difflib",
        "email",
        "google.protobuf.internal.python_message",
        "google.protobuf.text_format",
        "google.protobuf.wrappers_pb2",
        "importlib.metadata",
        "importlib.util",
        "json",
        "lzma",
        "mmap",
        "prometheus_client",
        "resource",
        "shutil",
        "subprocess",
        "ustreamer.core.storage.lmdb_tree",
        "ustreamer.core.storage.verify_process",
        "ustreamer.host.admin.taps",
        "ustreamer.host.cli.admin_commands",
        "ustreamer.host.cli.check",
        "ustreamer.host.cli.explain_command",
        "ustreamer.host.config.faults",
        "ustreamer.host.config.source_positions",
        "ustreamer.host.config.syntax_errors",
        "ustreamer.host.egress.durable_queue",
        "ustreamer.host.observe",
        "ustreamer.transports.someip.discovery.dynamic_services",
        "ustreamer.transports.someip.discovery.sd_driver",
        "ustreamer.transports.someip.endpoint.service_port",
        "ustreamer.transports.someip.io.recvmmsg",
        "ustreamer.transports.someip.io.tcp_connection",
        "ustreamer.transports.someip.io.tcp_connections",
        "ustreamer.transports.someip.sd.codec",
        "ustreamer.transports.someip.sd.discovery",
        "ustreamer.transports.someip.sd.interface_monitor",
        "ustreamer.transports.someip.sd.options",
        "ustreamer.transports.someip.sd.settings",
        "ustreamer.transports.someip.sd.sockets",
        "ustreamer_mqtt",
        "ustreamer_payloads",
        "ustreamer_recorder",
        "ustreamer_tracing",
        "ustreamer_usubscription.commands",
        "ustreamer_usubscription.removal",
        "ustreamer_wamp",
    ],
)
def test_a_streamer_loads_nothing_else(loaded: frozenset[str], module: str) -> None:
    assert module not in loaded


def test_the_modules_of_a_start_are_bounded(loaded: frozenset[str]) -> None:
    own = [name for name in loaded if name.partition(".")[0].startswith("ustreamer")]
    assert len(own) <= MAX_OWN_MODULES


@pytest.mark.parametrize(
    "module",
    [
        "asyncio",
        "google.protobuf",
        "importlib.metadata",
        "msgspec",
        "pluggy",
        "ssl",
        "subprocess",
        "ustreamer.core",
        "ustreamer.hooks",
        "ustreamer_recorder.plugin",
        "zenoh",
    ],
)
def test_the_help_of_all_commands_loads_no_streamer(module: str) -> None:
    command = [sys.executable, "-c", HELP]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "usage: ustreamer" in shown.stdout
    assert module not in json.loads(shown.stdout.splitlines()[-1])


def test_one_command_is_parsed_without_the_others_and_without_plugins() -> None:
    command = [sys.executable, "-c", CHECK]
    loaded = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert not [
        name for name in loaded if name.startswith(("msgspec", "ustreamer.host.runtime", "ustreamer_"))
    ]


def test_run_has_the_same_options_alone_and_among_all_commands() -> None:
    words = ["run", "vehicle.toml", "--drain", "2", "--log-format", "json", "--log-level", "debug"]
    assert vars(parser("run").parse_args(words)) == vars(parser().parse_args(words))
