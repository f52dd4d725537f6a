# SPDX-License-Identifier: Apache-2.0
"""docs/plugins.md: its plugin runs, it has a section for every hook and a row for all that a plugin gets."""

import re
from pathlib import Path
from typing import Any

import msgspec

from ustreamer.core.base.links import LinkState, LinkStates
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.hooks import Hooks, PluginContext
from ustreamer.testing.ledger import assert_accounted
from ustreamer.testing.messages import new_id
from ustreamer.testing.virtual_time import DispatcherBench, VirtualTime
from ustreamer.uprotocol import UUri
from ustreamer.uprotocol.umessage import publish

PAGE = (Path(__file__).parents[2] / "docs/plugins.md").read_text(encoding="utf-8")
DOOR = UUri("chassis", 0x2001, 1, 0x8001)


def night() -> type[Any]:
    return page_class("night", "NightPlugin")


def page_class(name: str, cls: str) -> type[Any]:
    """A class of a Python file that the page shows."""
    source = re.search(rf"```python\n# {name}.py\n(.*?)```", PAGE, re.DOTALL)
    assert source, f"the page shows {name}.py"
    module: dict[str, Any] = {"__name__": name}
    exec(compile(source.group(1), "docs/plugins.md", "exec"), module)
    plugin: type[Any] = module[cls]
    return plugin


def test_the_plugin_of_the_page_has_about_thirty_lines() -> None:
    source = PAGE.split("# night.py\n")[1].split("```")[0]
    assert len([line for line in source.splitlines() if line.strip()]) <= 30


def test_every_hook_has_a_section() -> None:
    hooks = {name for name in vars(Hooks) if name.startswith("ustreamer_")}
    assert set(re.findall(r"^### (ustreamer_\w+)$", PAGE, re.MULTILINE)) == hooks


def test_every_field_of_the_context_has_a_row() -> None:
    table = PAGE.split("## What a plugin is given")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(PluginContext.__struct_fields__)


def test_the_link_of_the_page_is_down_when_a_test_sets_it_down() -> None:
    [made] = re.findall(r"`(LinkStates\(.*?\.get\))`", PAGE)
    [call] = re.findall(r"`(links\.set_state\(.*?\))`", PAGE)
    links = eval(made, {"LinkStates": LinkStates})
    assert links.state_of("chassis") == LinkState(up=True, up_count=0)
    eval(call, {"links": links})
    assert links.state_of("chassis") == LinkState(up=False, up_count=0)
    assert links.state_of("cloud") == LinkState(up=True, up_count=0)


def test_the_plugin_of_the_page_behaves_as_documented(virtual_time: VirtualTime) -> None:
    cls = night()
    plugin = cls(msgspec.convert({"topic": str(DOOR)}, cls.Config), virtual_time.context())
    app = UUri("hpc", 1, 1, 0)
    subscriptions = [Subscription(DOOR, app), Subscription(DOOR.with_resource(0x8002), app)]
    bench = DispatcherBench(virtual_time, {"chassis": "chassis", "hpc": "backbone"}, [plugin], subscriptions)
    bench.dispatch(publish(new_id(), DOOR))
    plugin.quiet.on = True
    bench.dispatch(publish(new_id(), DOOR))
    bench.dispatch(publish(new_id(), DOOR.with_resource(0x8002)))
    assert [message.attributes.source.resource_id for message in bench.sent("backbone")] == [0x8001, 0x8002]
    assert_accounted(bench.ledger(), queued=0)
    assert (bench.ledger().denied, bench.ledger().delivered) == (1, 2)
