# SPDX-License-Identifier: Apache-2.0
"""What a plugin does wrong at its border is a sentence with plugin, class and expectation, and never a traceback."""

from pathlib import Path

import pytest

from tests.host.cli.test_main import own_process
from tests.host.runtime.test_plugins import Site, site
from ustreamer.host.cli.main import ExitCode, main
from ustreamer.host.runtime.plugins import missing_methods

__all__ = ["own_process", "site"]

HEAD = """\
from abc import ABC, abstractmethod
import msgspec
from ustreamer.hooks import hookimpl
from ustreamer.transport_port import EndpointConfig, EndpointTransport, TransportKind

class Config(msgspec.Struct, frozen=True): ...

class Link(EndpointTransport):
    def __init__(self, config, context): ...
    def open(self): ...
    def send(self, message): ...
    def register_listener(self, source_filter, sink_filter, listener): ...
    def unregister_listener(self, source_filter, sink_filter, listener): ...
    def statistics(self): return {}

def raising(*_):
    raise KeyError("speed")

class Plugin:
    Config = Config
    def __init__(self, config, context): ...

    @staticmethod
    @hookimpl
    def ustreamer_transports():
        return {"link": TransportKind(EndpointConfig, Link)}
"""

HOOK = "\nPlugin.ustreamer_transports = staticmethod(hookimpl({}, specname='ustreamer_transports'))\n"
SERVICE = """
class Half:
    entities = ()
    def start(self, bus): ...

class Serving(Plugin):
    @hookimpl
    def ustreamer_services(self):
        return [Half()]

Plugin = Serving
"""

WRONG = {
    "a transport without two methods": ("", "class Link lacks the methods close and stop_receiving"),
    "a transport without one method": (
        "\nLink.close = lambda self: None\nLink.__abstractmethods__ = frozenset({'stop_receiving'})\n",
        "class Link lacks the method stop_receiving",
    ),
    "a factory that raises": (
        HOOK.format("lambda: {'link': TransportKind(EndpointConfig, raising)}"),
        "transport 'link', endpoint 'a': its factory raised KeyError: 'speed'",
    ),
    "a factory of something else": (
        HOOK.format("lambda: {'link': TransportKind(EndpointConfig, lambda *_: {})}"),
        "its factory made a dict, which is no subclass of ustreamer.transport_port.EndpointTransport",
    ),
    "a hook that raises": (HOOK.format("lambda: raising()"), "ustreamer_transports raised KeyError: 'speed'"),
    "a hook that returns a list": (
        HOOK.format("lambda: [1]"),
        "ustreamer_transports returned [1]; expected a TransportKind by the name of each transport",
    ),
    "a hook that returns a class": (
        HOOK.format("lambda: {'link': Link}"),
        "expected a TransportKind by the name of each transport",
    ),
    "a plugin class without a method": (
        "\nclass Abstract(ABC, Plugin):\n    @abstractmethod\n    def size(self): ...\nPlugin = Abstract\n",
        "class Abstract lacks the method size",
    ),
    "a plugin class whose constructor raises": (
        "\nPlugin.__init__ = raising\n",
        "Plugin(config, context) raised KeyError: 'speed'",
    ),
    "a service without a method": (SERVICE, "service Half lacks stop"),
}


@pytest.mark.parametrize("name", WRONG)
def test_check_and_run_print_a_sentence_that_names_the_plugin(
    name: str, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, sentence = WRONG[name]
    site.install("notebook", HEAD + source)
    config = tmp_path / "ustreamer.toml"
    config.write_text(
        'authority = "hpc"\nstate_dir = "state"\n[plugins.notebook]\n'
        '[endpoints.a]\ntransport = "link"\nauthorities = ["car"]\n',
        encoding="utf-8",
    )
    for command in (["check", str(config)], ["run", str(config)]):
        assert main(command) == ExitCode.BAD_CONFIG
        printed = capsys.readouterr().err
        assert sentence in printed
        assert "notebook" in printed
        assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Can't instantiate abstract class A with abstract method x", "class A lacks the method x"),
        (
            "Can't instantiate abstract class A without an implementation for abstract methods 'x', 'y', 'z'",
            "class A lacks the methods x, y and z",
        ),
        ("A() takes no arguments", ""),
    ],
)
def test_the_texts_of_all_versions_of_python_are_read(text: str, sentence: str) -> None:
    assert missing_methods(TypeError(text)) == sentence
    assert missing_methods(ValueError(text)) == ""
