# SPDX-License-Identifier: Apache-2.0
"""The contract of a plugin that provides a kind of transport: subclass `EndpointContract` next to `TransportContract`.

    class TestMyEndpoint(EndpointContract):
        plugin = MyPlugin
        kind = "my"                                  # transport = "my"

        @contextmanager
        def make_section(self) -> Iterator[Mapping[str, Any]]:
            yield {"listen": "127.0.0.1:0"}          # keys of [endpoints.network] with which it opens here

The suite checks the hook `ustreamer_transports`, the section, `ustreamer check` and the start and stop of a streamer.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import pytest

from ustreamer.core.routing.identity import Identity
from ustreamer.host.config.config import ConfigError
from ustreamer.host.runtime import plugins
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.entry_points import PLUGINS
from ustreamer.testing.bench import StreamerBench
from ustreamer.testing.messages import ALPHA, BETA, TOPIC
from ustreamer.testing.pair import resources
from ustreamer.transport_port import (
    BoundAddress,
    ConfigWarning,
    EndpointConfig,
    EndpointContext,
    EndpointTransport,
    NamedPattern,
    TransportKind,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError

_NETWORK: Final = "network"
_PLUGIN: Final = "under_test"


class EndpointContract(ABC):
    """The contract. Each test checks a guarantee of `TransportKind`, of its `EndpointConfig` or of a life in a streamer."""

    plugin: ClassVar[type[Any]]
    """The class that the entry point names."""
    kind: ClassVar[str]
    """The name of the transport in a section."""
    wrong_sections: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Maps an expected error text to the keys that cause it. They replace those of `make_section`, or are added."""

    @abstractmethod
    def make_section(self) -> AbstractContextManager[Mapping[str, Any]]:
        """The keys of a section except `transport` and `authorities`, such that its endpoint can be opened."""

    def make_unavailable_section(self) -> AbstractContextManager[tuple[Mapping[str, Any], str]] | None:
        """A section that is valid and whose `open` fails, and what the error must name, such as the address.

        None: `open` needs nothing that can be missing.
        """
        return None

    # --- fixtures -----------------------------------------------------------------------------------------------------

    @pytest.fixture
    def section(self) -> Iterator[dict[str, Any]]:
        """The keys of a section, as in a file."""
        with self.make_section() as keys:
            yield {"transport": self.kind, "authorities": [ALPHA], **keys}

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[StreamerBench]:
        """For streamers with the endpoint."""
        with StreamerBench(tmp_path) as bench:
            yield bench

    def transport_kind(self) -> TransportKind:
        """The kind, as the host finds it."""
        found = plugins.transport_kinds(plugins.class_plugin_manager({_PLUGIN: self.plugin}))
        assert self.kind in found, f"ustreamer_transports() names {sorted(found)}, not {self.kind!r}"
        return found[self.kind]

    def configuration(self, section: Mapping[str, Any]) -> str:
        """A configuration with this section, as TOML."""
        lines = [f'authority = "{BETA}"', 'state_dir = "state"', f"[endpoints.{_NETWORK}]"]
        return "\n".join([*lines, *(f"{key} = {_toml(value)}" for key, value in section.items()), ""])

    def config_of(self, bench: StreamerBench, section: Mapping[str, Any]) -> EndpointConfig:
        """The checked section. Raises ConfigError."""
        return bench.load(self.configuration(section), {_PLUGIN: self.plugin}).endpoints[_NETWORK]

    def endpoint(self, config: EndpointConfig) -> EndpointTransport:
        """The endpoint of a configuration, not opened."""
        return self.transport_kind().factory(config, EndpointContext(_NETWORK, BETA, SYSTEM_CLOCK))

    # --- the hook -----------------------------------------------------------------------------------------------------

    def test_the_class_is_a_plugin(self) -> None:
        place = f"{self.plugin.__module__}:{self.plugin.__qualname__}"
        assert plugins.plugin_class(EntryPoint(self.kind, place, PLUGINS)) is self.plugin

    def test_the_hook_provides_the_kind_without_side_effects(self) -> None:
        before = resources()
        assert self.transport_kind() == self.transport_kind()
        assert resources() == before

    def test_the_kind_has_a_section_type_and_names_keys_of_it(self) -> None:
        kind = self.transport_kind()
        assert issubclass(kind.config, EndpointConfig)
        assert kind.config.__struct_config__.frozen
        assert kind.config.__struct_config__.forbid_unknown_fields
        assert kind.reloadable_keys <= set(kind.config.__struct_fields__)

    # --- the section --------------------------------------------------------------------------------------------------

    def test_a_section_is_accepted_with_the_keys_of_every_endpoint(
        self, bench: StreamerBench, section: dict[str, Any]
    ) -> None:
        common = {"duplicate_window": 16, "access": [{"type": "publish", "allow": True}]}
        config = self.config_of(bench, section | common)
        assert (config.transport, config.authorities) == (self.kind, (ALPHA,))
        assert (config.duplicate_window, len(config.access)) == (16, 1)

    def test_an_unknown_key_is_refused_by_name(self, bench: StreamerBench, section: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="no_such_key"):
            self.config_of(bench, section | {"no_such_key": 1})

    def test_a_wrong_section_is_refused_with_its_reason(
        self, bench: StreamerBench, section: dict[str, Any]
    ) -> None:
        if not self.wrong_sections:
            pytest.skip("no wrong_sections are given")
        for text, keys in self.wrong_sections.items():
            with pytest.raises(ConfigError) as refused:
                self.config_of(bench, {**section, **keys})
            assert text in str(refused.value)

    def test_the_answers_of_a_section_have_the_types_of_the_port(
        self, bench: StreamerBench, section: dict[str, Any]
    ) -> None:
        config = self.config_of(bench, section)
        assert all(type(each) is Identity for each in config.known_identities() or ())
        identities = config.identities_of(TOPIC)
        assert identities is None or type(identities) is frozenset
        for address in config.bound_addresses():
            assert type(address) is BoundAddress
            assert address.protocol in {"tcp", "udp", "unix"}
            assert 0 <= address.port <= 65_535
            assert address.key.partition("[")[0].partition(".")[0] in type(config).__struct_fields__
        assert all(type(each) is NamedPattern for each in config.patterns())
        assert all(type(each) is ConfigWarning and each.text for each in config.warnings())

    def test_an_unchanged_section_needs_no_restart(
        self, bench: StreamerBench, section: dict[str, Any]
    ) -> None:
        config = self.config_of(bench, section)
        assert self.transport_kind().restart_reason(config, msgspec.structs.replace(config)) == ""
        assert type(self.transport_kind().provides_usubscription(config)) is bool

    # --- the endpoint -------------------------------------------------------------------------------------------------

    def test_a_factory_has_no_side_effect(self, bench: StreamerBench, section: dict[str, Any]) -> None:
        config = self.config_of(bench, section)
        self.endpoint(config).close()  # may import a library
        files, threads = resources()
        made = [self.endpoint(config) for _ in range(2)]
        assert all(isinstance(each, EndpointTransport) for each in made)
        assert [list(each.problems()) for each in made] == [[], []]
        now = resources()
        assert now[0] <= files, "open files"
        assert now[1] <= threads, "threads"
        for each in made:
            each.close()

    def test_an_endpoint_opens_and_leaves_nothing_open(
        self, bench: StreamerBench, section: dict[str, Any]
    ) -> None:
        config = self.config_of(bench, section)

        def open_and_close() -> None:
            endpoint = self.endpoint(config)
            endpoint.open()
            endpoint.close()

        open_and_close()  # a library may keep what it opens once
        before = resources()
        for _ in range(2):  # what the first one bound is free again
            open_and_close()
        left = resources()
        assert left[1] <= before[1], "threads"
        assert left[0] <= before[0], "open files"

    def test_a_missing_resource_is_unavailable_and_named(self, bench: StreamerBench) -> None:
        unavailable = self.make_unavailable_section()
        if unavailable is None:
            pytest.skip("make_unavailable_section gives none")
        with unavailable as (keys, named):
            config = self.config_of(bench, {"transport": self.kind, "authorities": [ALPHA], **keys})
            threads = set(threading.enumerate())
            endpoint = self.endpoint(config)
            with pytest.raises(UStatusError) as refused:
                endpoint.open()
            assert refused.value.code is UCode.UNAVAILABLE
            assert named in str(refused.value)
            endpoint.close()
            assert set(threading.enumerate()) <= threads

    def test_a_streamer_starts_and_stops_with_it(self, bench: StreamerBench, section: dict[str, Any]) -> None:
        toml = self.configuration(section)
        streamer = bench.start_streamer(toml, {_PLUGIN: self.plugin})
        statistics = streamer.transports[_NETWORK].statistics()
        assert all(type(value) is int for value in statistics.values())
        assert streamer.stop(0) == 0


def _toml(value: object) -> str:
    """A value of a section as TOML: as JSON, except tables."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
