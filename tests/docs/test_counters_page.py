# SPDX-License-Identifier: Apache-2.0
"""docs/reference/counters.md has each counter of the code once, in the section of its place, and no other."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ustreamer.host.observe.metrics import is_present_value
from ustreamer.host.runtime import process
from ustreamer.testing.bench import StreamerBench

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/counters.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (count|now) \| .+ \|$", re.MULTILINE)
CONFIG = """
authority = "hpc.vin1"

[endpoints.zenoh]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:0"]
receipts = true
durable = true

[endpoints.someip]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = 30500

[endpoints.someip.sd]
interface = "127.0.0.1"
multicast = "224.244.224.245"
dynamic_services = true

[[endpoints.someip.services]]
service = 0x1234
major = 1
events = [{ id = 0x8001, e2e = { profile = "P05", data_id = 1 } }]

[endpoints.local]
transport = "local"
authorities = ["app"]
network = "vehicle"

[endpoints.mqtt]
transport = "mqtt"
authorities = ["cloud"]

[plugins.mqtt]

[plugins.wamp]
listen = "ws://127.0.0.1:0/ws"
"""
READERS = {"statistics", "counters", "counts", "gauges", "_own_statistics", "_receipt_counters"}
"""Functions that return counters by name."""
SECTIONS = {
    "Durable endpoints": ("ustreamer/host/egress/durable_queue.py", "ustreamer/host/storage/spool.py"),
    "Zenoh": ("ustreamer/transports/zenoh",),
    "SOME/IP": ("ustreamer/transports/someip",),
    "Local": ("ustreamer/transports/local",),
    "MQTT": ("plugins/mqtt/ustreamer_mqtt",),
    "WAMP": ("plugins/wamp/ustreamer_wamp",),
}
"""Of sections of the page: where their counters are made."""
ENDPOINTS = {
    section: section.replace("/", "").lower() for section in SECTIONS if section != "Durable endpoints"
}
"""Of each section of a transport: the endpoint in CONFIG. That of the plugin wamp needs no section."""


def counters_in(text: str) -> Iterator[str]:
    """The names that a module has as literals: keys of what READERS return, and of a counter that increases."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) if name in READERS:
                for part in ast.walk(node):
                    if isinstance(part, ast.Dict):
                        yield from (key.value for key in part.keys if isinstance(key, ast.Constant))  # type: ignore[misc]
            case ast.AugAssign(target=ast.Subscript(value=counts, slice=ast.Constant(value=str(key)))):
                if ast.unparse(counts).endswith(("counts", "_counts")):
                    yield key


def written_in(places: tuple[str, ...]) -> set[str]:
    files = [
        path
        for place in places
        for path in ((ROOT / place).rglob("*.py") if (ROOT / place).is_dir() else [ROOT / place])
    ]
    return {name for path in files for name in counters_in(path.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """By endpoint, and of the dead letters: the names in the statistics of a streamer that was not started."""
    path = tmp_path_factory.mktemp("counters") / "gateway.toml"
    path.write_text(f'state_dir = "{path.parent}/state"\n{CONFIG}', encoding="utf-8")
    statistics = process.load(path).streamer().statistics()
    return {
        **{name: set(each) for name, each in statistics.endpoints.items()},
        "": set(statistics.dead_letters),
    }


@pytest.fixture(scope="module")
def of_every_endpoint(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The counters that a running streamer adds to those of the transport."""
    with StreamerBench(tmp_path_factory.mktemp("bench")) as bench:
        streamer = bench.start_streamer(
            'authority = "hpc"\n[endpoints.local]\ntransport = "local"\nauthorities = ["hpc"]\nnetwork = "n"\n'
        )
        return streamer.endpoints()["local"].keys() - streamer.transports["local"].statistics().keys()


def documented() -> dict[str, dict[str, str]]:
    """By section: the kind of each counter."""
    parts = PAGE.split("\n## ")[1:]
    return {part.partition("\n")[0]: dict(ROW.findall(part)) for part in parts}


def test_the_page_has_each_counter_of_each_section(
    shown: Mapping[str, set[str]], of_every_endpoint: set[str]
) -> None:
    durable = written_in(SECTIONS["Durable endpoints"])
    expected = {
        "Every endpoint": of_every_endpoint,
        "Durable endpoints": durable,
        "Dead letters": shown[""],
    }
    for section, name in ENDPOINTS.items():
        expected[section] = shown[name] - of_every_endpoint - durable | written_in(SECTIONS[section])
    assert {section: kinds.keys() for section, kinds in documented().items()} == expected


def test_a_counter_has_one_row() -> None:
    for part in PAGE.split("\n## ")[1:]:
        names = [name for name, _ in ROW.findall(part)]
        assert len(names) == len(set(names)), part.partition("\n")[0]


def test_the_kind_of_a_counter_is_that_of_its_metric() -> None:
    kinds = {
        (section, name): kind
        for section, rows in documented().items()
        if section != "Dead letters"
        for name, kind in rows.items()
    }
    assert kinds == {place: "now" if is_present_value(place[1]) else "count" for place in kinds}


def test_a_name_is_found_in_each_form() -> None:
    text = "def statistics(self):\n    return {'a': 1, **{'b': 2}, **more}\nself._counts['c'] += 1\nother['d'] += 1"
    assert set(counters_in(text)) == {"a", "b", "c"}
