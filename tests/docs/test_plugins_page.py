# SPDX-License-Identifier: Apache-2.0
"""docs/plugins.md: its plugin runs, it has a section for every hook and a row for all that a plugin gets."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pluggy

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.links import LinkState, LinkStates
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.ports import SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import StaticDirectory, Subscription
from ustreamer.hooks import PROJECT, Hooks, PluginContext
from ustreamer.uprotocol import UMessage, UuidSource, UUri
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


class ListQueue:
    unicast = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledger = Ledger()
        self.sent: list[UMessage] = []

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return self.sent.append

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        delivery.transmit(message)
        delivery.settle(self.ledger, message, Verdict.DELIVERED, now_ns, now_ns)


def test_the_plugin_of_the_page_behaves_as_documented() -> None:
    cls = night()
    clock = ManualClock().clock()
    config = msgspec.convert({"topic": str(DOOR)}, cls.Config)
    plugin = cls(config, PluginContext("hpc", ("hpc",), Path(), clock, lambda when, action: None))
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    manager.check_pending()
    queues = {name: ListQueue(name) for name in (SELF, "chassis", "backbone")}
    app = UUri("hpc", 1, 1, 0)
    directory = StaticDirectory([Subscription(DOOR, app), Subscription(DOOR.with_resource(0x8002), app)])
    dispatcher = Dispatcher(
        "hpc",
        clock,
        Router(
            AuthorityTable({"chassis": "chassis", "hpc": "backbone"}), directory, dict.fromkeys(queues, False)
        ),
        queues,
        filters=lambda delivery: manager.hook.ustreamer_filters(delivery=delivery),
        schedule=lambda when, action: None,
    )
    ids = UuidSource(clock.wall_ms)
    dispatch = dispatcher.ingress("chassis").dispatch
    dispatch(publish(ids.next(), DOOR))
    plugin.quiet.on = True
    dispatch(publish(ids.next(), DOOR))
    dispatch(publish(ids.next(), DOOR.with_resource(0x8002)))
    assert [message.attributes.source.resource_id for message in queues["backbone"].sent] == [0x8001, 0x8002]
    ledger = dispatcher.ledger_snapshot([queue.ledger for queue in queues.values()], queued=0)
    assert (ledger.denied, ledger.delivered, ledger.unaccounted) == (1, 2, 0)
