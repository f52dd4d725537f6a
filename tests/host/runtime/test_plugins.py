# SPDX-License-Identifier: Apache-2.0
"""Plugins installed by tests: distributions with an entry point, in a directory on the import path."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.links import LinkState
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.host.runtime import plugins
from ustreamer.host.runtime.entry_points import PLUGINS
from ustreamer.host.runtime.plugins import PluginError, PluginInfo
from ustreamer.transport_port import EndpointConfig, EndpointContext, EndpointTransport, TransportKind
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.sd.config import SdConfig
from ustreamer.uprotocol.ustatus import UCode, UStatusError

OURS = plugins.installed_plugins().keys()  # before a test installs more
CONTEXT = PluginContext("hpc", ("hpc",), Path("state"), ManualClock().clock(), lambda when_ns, action: None)


class Site:
    """A directory on the import path. `install` puts a distribution there, with one module and one entry point."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.modules: list[str] = []

    def install(
        self,
        name: str,
        source: str,
        *,
        names: str = "Plugin",
        distribution: str = "",
        module: str = "",
        version: str = "1.2.3",
        group: str = PLUGINS,
    ) -> str:
        """The value of the entry point: `module:names`."""
        distribution = distribution or f"plug-{len(self.modules)}"
        module = module or f"installed_by_test_{len(self.modules)}"
        self.modules.append(module)
        (self._directory / f"{module}.py").write_text(source, encoding="utf-8")
        info = self._directory / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        about = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / "METADATA").write_text(about, encoding="utf-8")
        entry = f"[{group}]\n{name} = {module}:{names}\n"
        (info / "entry_points.txt").write_text(entry, encoding="utf-8")
        return f"{module}:{names}"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(tmp_path)
    site = Site(tmp_path)
    yield site
    for module in site.modules:
        sys.modules.pop(module, None)


USABLE = """\
import msgspec
from ustreamer.hooks import hookimpl

class Plugin:
    class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        depth: int = 3

    def __init__(self, config, context):
        self.config, self.context = config, context

    @hookimpl
    def ustreamer_stopping(self):
        return None

    @hookimpl
    def ustreamer_filters(self, delivery):
        return None

    def ustreamer_of_no_hook(self):
        return None
"""


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(PluginError) as raised:
        call()
    return str(raised.value)


# -------------------------------------------------------------------------------------------------------- finding


def test_an_installed_plugin_is_found_by_entry_point_without_import(site: Site) -> None:
    value = site.install("notebook", "raise RuntimeError('imported')")
    found = plugins.installed_plugins()
    assert found.keys() == OURS | {"notebook"}
    assert found["notebook"].value == value
    assert site.modules[0] not in sys.modules


def test_two_plugins_of_one_name_are_refused_with_both_places(site: Site) -> None:
    values = [site.install("notebook", USABLE), site.install("notebook", USABLE)]
    text = refusal(plugins.installed_plugins)
    assert text.startswith("plugin 'notebook' is defined twice: ")
    assert all(value in text for value in values)


def test_a_plugin_that_is_installed_twice_in_the_same_way_is_one_plugin(site: Site) -> None:
    for distribution in ("plug-a", "plug-b"):  # an editable install next to a copy of it
        site.install("notebook", USABLE, distribution=distribution, module="installed_by_test")
    assert plugins.installed_plugins()["notebook"].value == "installed_by_test:Plugin"


def test_an_entry_point_of_another_group_is_no_plugin(site: Site) -> None:
    site.install("notebook", USABLE, group="ustreamers")
    assert plugins.installed_plugins().keys() == OURS >= {"throttle", "usubscription"}


def test_a_plugin_is_described_with_its_hooks_in_the_order_of_the_hooks_page(
    site: Site,
) -> None:
    site.install("notebook", USABLE, distribution="plug-notebook", version="4.5")
    assert plugins.describe(plugins.installed_plugins()["notebook"]) == PluginInfo(
        "notebook", "plug-notebook", "4.5", ("ustreamer_filters", "ustreamer_stopping")
    )


def test_an_entry_point_without_a_distribution_is_described_all_the_same(site: Site) -> None:
    value = site.install("notebook", USABLE)
    described = plugins.describe(EntryPoint("notebook", value, PLUGINS))
    assert (described.distribution, described.version) == ("?", "?")


def test_the_hooks_are_those_of_the_hooks_page() -> None:
    assert plugins.hook_names() == (
        "ustreamer_transports",
        "ustreamer_authorise",
        "ustreamer_filters",
        "ustreamer_taps",
        "ustreamer_services",
        "ustreamer_broadcast_topics",
        "ustreamer_subscription_directory",
        "ustreamer_subscription_watch",
        "ustreamer_stored_subscriptions",
        "ustreamer_decoders",
        "ustreamer_configured",
        "ustreamer_started",
        "ustreamer_stopping",
        "ustreamer_stopped",
    )


# -------------------------------------------------------------------------------------------------------- importing


def test_a_class_with_a_config_is_loaded(site: Site) -> None:
    site.install("notebook", USABLE)
    loaded = plugins.plugin_class(plugins.installed_plugins()["notebook"])
    assert (loaded.__name__, loaded.Config().depth) == ("Plugin", 3)


UNLOADABLE = {
    "what it needs is not installed": ("import no_such_library", "Plugin", "no_such_library"),
    "the class is not in the module": ("x = 1", "Plugin", "Plugin"),
    "it is no Python": ("def (:", "Plugin", "invalid syntax"),
    "it fails while it is imported": ("1 / 0", "Plugin", "division by zero"),
    "it ends in an error of its own": ("raise RuntimeError('no licence file')", "Plugin", "no licence file"),
}


@pytest.mark.parametrize(("source", "names", "why"), UNLOADABLE.values(), ids=UNLOADABLE.keys())
def test_a_plugin_that_cannot_be_imported_is_named_with_its_place_and_the_reason(
    site: Site, source: str, names: str, why: str
) -> None:
    value = site.install("notebook", source, names=names)
    text = refusal(lambda: plugins.plugin_class(plugins.installed_plugins()["notebook"]))
    assert text.startswith(f"plugin 'notebook': cannot load {value!r}: ")
    assert why in text


UNFIT = {
    "it has no Config": "class Plugin: pass",
    "its Config is no class": "class Plugin:\n    Config = 3",
    "its Config is no Struct": "class Plugin:\n    class Config: pass",
    "it is a function": "import msgspec\ndef Plugin(): pass\nPlugin.Config = msgspec.Struct",
    "it is an instance": "import msgspec\nclass P:\n    class Config(msgspec.Struct): pass\nPlugin = P()",
}


@pytest.mark.parametrize("source", UNFIT.values(), ids=UNFIT.keys())
def test_an_entry_point_without_a_config_class_is_refused_with_the_expectation(
    site: Site, source: str
) -> None:
    value = site.install("notebook", source)
    assert refusal(lambda: plugins.plugin_class(plugins.installed_plugins()["notebook"])) == (
        f"plugin 'notebook': {value!r} is not a class with a msgspec.Struct named Config"
    )


# ------------------------------------------------------------------------------------------------------ registering


class NoConfig(msgspec.Struct, frozen=True): ...


class Noting:
    """A plugin that notes its creation and its calls."""

    Config = NoConfig
    notes: ClassVar[list[str]] = []

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        assert context is CONTEXT
        self.notes.append(f"made {type(self).__name__}")

    @hookimpl
    def ustreamer_stopping(self) -> None:
        self.notes.append(f"stopping {type(self).__name__}")


class First(Noting): ...


class Second(Noting): ...


class Third(Noting): ...


class Misspelt(Noting):
    @hookimpl
    def ustreamer_filtres(self, delivery: object) -> None: ...


class WrongArgument(Noting):
    @hookimpl
    def ustreamer_filters(self, target: object) -> None: ...


class Impossible(Noting):
    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        raise UStatusError(UCode.UNIMPLEMENTED, "not in this version")


@pytest.fixture(autouse=True)
def no_notes() -> None:
    Noting.notes.clear()


def test_one_instance_of_each_configured_plugin_is_made_in_the_order_of_the_configuration() -> None:
    loaded = {"first": First, "second": Second, "third": Third}
    manager = plugins.instance_plugin_manager(loaded, {"third": NoConfig(), "first": NoConfig()}, CONTEXT)
    assert Noting.notes == ["made Third", "made First"]
    assert [name for name, _ in manager.list_name_plugin()] == ["third", "first"]
    assert isinstance(manager.get_plugin("first"), First)


def test_the_last_configured_plugin_is_called_first() -> None:
    manager = plugins.instance_plugin_manager(
        {"first": First, "second": Second}, {"first": NoConfig(), "second": NoConfig()}, CONTEXT
    )
    Noting.notes.clear()
    manager.hook.ustreamer_stopping()
    assert Noting.notes == ["stopping Second", "stopping First"]


def test_the_reason_of_a_failed_plugin_is_unchanged() -> None:
    with pytest.raises(UStatusError, match="not in this version"):
        plugins.instance_plugin_manager({"impossible": Impossible}, {"impossible": NoConfig()}, CONTEXT)


@pytest.mark.parametrize(
    ("cls", "word"), [(Misspelt, "ustreamer_filtres"), (WrongArgument, "target")], ids=str
)
@pytest.mark.parametrize("with_configuration", [True, False])
def test_an_unknown_hook_is_refused_by_name(cls: type[Noting], word: str, with_configuration: bool) -> None:
    def register() -> object:
        if with_configuration:
            return plugins.instance_plugin_manager({"odd": cls}, {"odd": NoConfig()}, CONTEXT)
        return plugins.class_plugin_manager({"odd": cls})

    text = refusal(register)
    assert text.startswith("plugin 'odd': ")
    assert word in text


def test_one_class_under_two_names_is_refused() -> None:
    assert refusal(lambda: plugins.class_plugin_manager({"first": First, "again": First})).startswith(
        "plugin 'again': "
    )


def test_a_plugin_cannot_use_the_name_of_the_builtin_transports() -> None:
    assert refusal(lambda: plugins.class_plugin_manager({"builtin": First})).startswith("plugin 'builtin': ")


# ------------------------------------------------------------------------------------------------------- transports


def never(config: EndpointConfig, context: EndpointContext) -> EndpointTransport:
    raise AssertionError("no endpoint is made here")


class Bluetooth(Noting):
    @staticmethod
    @hookimpl
    def ustreamer_transports() -> dict[str, TransportKind]:
        return {"bluetooth": TransportKind(EndpointConfig, never, has_usubscription=False)}


class OtherBluetooth(Noting):
    ustreamer_transports = staticmethod(Bluetooth.ustreamer_transports)


class OtherZenoh(Noting):
    @staticmethod
    @hookimpl
    def ustreamer_transports() -> dict[str, TransportKind]:
        return {"zenoh": TransportKind(EndpointConfig, never)}


def kinds(**loaded: type[Noting]) -> dict[str, TransportKind]:
    return plugins.transport_kinds(plugins.class_plugin_manager(loaded))


def test_the_transports_of_the_streamer_are_available_without_any_plugin() -> None:
    found = kinds()
    assert found.keys() == {"local", "zenoh", "someip"}
    assert all(issubclass(kind.config, EndpointConfig) for kind in found.values())


def someip(sd: SdConfig | bool) -> SomeipEndpoint:
    return SomeipEndpoint(transport="someip", authorities=("chassis",), bind="127.0.0.1", port=0, sd=sd)


def test_behind_someip_there_is_a_usubscription_where_service_discovery_is_on() -> None:
    kind = kinds()["someip"]
    assert not kind.provides_usubscription(someip(sd=False))
    assert kind.provides_usubscription(someip(SdConfig("224.244.224.245", "127.0.0.1")))


def test_a_plugin_adds_transports_without_being_made() -> None:
    assert kinds(first=First, bluetooth=Bluetooth).keys() == {"local", "zenoh", "someip", "bluetooth"}
    assert Noting.notes == []


@pytest.mark.parametrize(
    ("loaded", "name"),
    [
        ({"a": Bluetooth, "b": OtherBluetooth}, "bluetooth"),
        ({"a": OtherZenoh}, "zenoh"),
    ],
)
def test_a_transport_that_two_offer_is_refused(loaded: dict[str, type[Noting]], name: str) -> None:
    assert refusal(lambda: kinds(**loaded)) == f"transport {name!r} is offered by two plugins"


def test_a_context_made_without_links_has_some_of_its_own_and_everything_is_up() -> None:
    other = PluginContext("hpc", ("hpc",), Path("state"), CONTEXT.clock, CONTEXT.schedule)
    assert CONTEXT.links.state_of("chassis") == LinkState(up=True, up_count=0)
    assert CONTEXT.links is not other.links
