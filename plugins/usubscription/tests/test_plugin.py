# SPDX-License-Identifier: Apache-2.0
"""The plugin as the host sees it."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pluggy
import pytest
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.plugin import UsubscriptionPlugin
from ustreamer_usubscription.service import ENTITY, UsubscriptionService

from ustreamer import hooks
from ustreamer.core.base.clock import ManualClock
from ustreamer.hooks import PluginContext
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig


APP = UUri("device1", 0x300EF, 4, 0)
TOPIC, OTHER_TOPIC = UUri("device2", 0x10AB, 3, 0x80CD), UUri("device1", 0x42, 1, 0x8000)


def context(state_dir: Path) -> PluginContext:
    return PluginContext("hpc", ("hpc", "chassis"), state_dir, ManualClock().clock(), lambda *_: None)


def test_every_hook_that_it_implements_is_one_that_the_host_calls(tmp_path: Path) -> None:
    plugins = pluggy.PluginManager(hooks.PROJECT)
    plugins.add_hookspecs(hooks.Hooks)
    plugin = UsubscriptionPlugin(UsubscriptionConfig(), context(tmp_path))
    plugins.register(plugin)
    plugins.check_pending()
    assert plugins.hook.ustreamer_services() == [[plugin.service]]
    assert plugins.hook.ustreamer_subscription_directory() == [plugin.directory]


@pytest.mark.parametrize("external", [False, True])
def test_its_change_topics_need_no_subscription_except_those_of_another_process(
    tmp_path: Path, external: bool
) -> None:
    plugin = UsubscriptionPlugin(UsubscriptionConfig(external=external), context(tmp_path))
    own = [UUri("hpc", 0, version, 0x8000) for version in (3, 4)]
    assert plugin.ustreamer_broadcast_topics() == (() if external else own)


def test_stored_subscriptions_can_be_queried_without_a_start(make_rig: "Callable[..., ServiceRig]") -> None:
    rig = make_rig().start()
    rig.subscribe()
    rig.subscribe(OTHER_TOPIC, expire_ms=rig.now_ms + 1000)
    rig.stop()
    rig.advance(s=2)
    directory = rig._new_plugin().ustreamer_stored_subscriptions()
    assert [each.subscriber for each in directory.subscribers(TOPIC)] == [APP]
    assert directory.subscribers(OTHER_TOPIC) == ()


def test_without_a_store_there_is_no_subscription_and_no_file_is_created(tmp_path: Path) -> None:
    plugin = UsubscriptionPlugin(UsubscriptionConfig(), context(tmp_path / "state"))
    assert plugin.ustreamer_stored_subscriptions().subscribers(TOPIC) == ()
    assert list(tmp_path.iterdir()) == []


def test_construction_touches_nothing(tmp_path: Path) -> None:
    UsubscriptionPlugin(UsubscriptionConfig(), context(tmp_path / "state"))
    assert list(tmp_path.iterdir()) == []


def test_it_hosts_core_usubscription_at_its_own_and_every_served_authority(tmp_path: Path) -> None:
    plugin = UsubscriptionPlugin(UsubscriptionConfig(), context(tmp_path))
    assert [(e.authority_name, e.ue_id, e.resource_id) for e in plugin.service.entities] == [
        ("chassis", 0, 0),
        ("hpc", 0, 0),
    ]


def test_only_bounds_change_at_run_time(tmp_path: Path) -> None:
    plugin = UsubscriptionPlugin(UsubscriptionConfig(), context(tmp_path))
    wanted = UsubscriptionConfig(max_subscriptions=5, page_size=7)
    apply = plugin.reconfigure(wanted)
    assert plugin.service.config == UsubscriptionConfig()
    apply()
    assert plugin.service.config == wanted
    with pytest.raises(ValueError, match=r"^topic_lifecycle, history: needs a restart$"):
        plugin.reconfigure(UsubscriptionConfig(topic_lifecycle="track", history=1, max_topics=3))
    assert plugin.service.config == wanted


def test_a_service_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    plugin = UsubscriptionPlugin(UsubscriptionConfig(), context(tmp_path))
    plugin.service.stop()
    assert list(tmp_path.iterdir()) == []


def test_stopping_twice_changes_nothing(make_rig: "Callable[..., ServiceRig]") -> None:
    rig = make_rig().start()
    rig.stop()
    rig.stop()
    assert not (rig.state_dir / "usubscription" / "new").exists()


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ({"topic_lifecycle": "on"}, r"\$.topic_lifecycle"),
        ({"map_size_mb": 0}, r"\$.map_size_mb"),
        ({"map_size_mb": 65_537}, r"\$.map_size_mb"),
        ({"max_subscriptions": 0}, r"\$.max_subscriptions"),
        ({"max_registrations": 0}, r"\$.max_registrations"),
        ({"max_topics": 0}, r"\$.max_topics"),
        ({"register_policy": "shut"}, r"\$.register_policy"),
        ({"dispatchers": ["//a/1/1/0", "a"]}, r"dispatchers\[1\]: UUri 'a'"),
        ({"permissions": [{"topic": "//a/1/1/G", "level": 1}]}, r"permissions\[0\].topic: UUri '//a/1/1/G'"),
        ({"permissions": [{"topic": "//a/1/1/8000", "level": 6}]}, r"permissions\[0\].level: 6 is above"),
        ({"permissions": [{"topic": "//a/1/1/8000"}]}, "missing required field `level`"),
        ({"delivery": [{"topic": "a"}]}, r"delivery\[0\].topic: UUri 'a'"),
        ({"delivery": [{"topic": "//a/1/1/8000", "kind": ""}]}, "unknown field `kind`"),
        ({"max_queued_requests": 0}, r"\$.max_queued_requests"),
        ({"page_size": 0}, r"\$.page_size"),
        ({"mapsize": 1}, "unknown field `mapsize`"),
    ],
)
def test_a_section_with_an_error_is_rejected(section: dict[str, object], where: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=where):
        msgspec.convert(section, UsubscriptionConfig)
    assert msgspec.convert({"topic_lifecycle": "off"}, UsubscriptionConfig) == UsubscriptionConfig()


def test_the_readme_shows_every_key_with_its_default() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    section = tomllib.loads(example)["plugins"]["usubscription"]
    assert section.keys() == msgspec.to_builtins(UsubscriptionConfig()).keys()
    assert msgspec.convert(section, UsubscriptionConfig) == UsubscriptionConfig()
    assert [key for key in section if f"| `{key}` |" not in readme] == []


def test_the_service_is_one_that_the_host_can_run(tmp_path: Path) -> None:
    service: hooks.HostedService = UsubscriptionService(
        UsubscriptionConfig(), context(tmp_path), InMemoryDirectory()
    )
    assert {(entity.ue_id, entity.resource_id) for entity in service.entities} == {(ENTITY, 0)}
