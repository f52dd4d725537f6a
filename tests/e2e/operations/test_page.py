# SPDX-License-Identifier: Apache-2.0
"""The operator's page in a real browser, on a real streamer with an unreachable subscriber."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.e2e.rigs import vehicle as rig
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import Metronome, SomeipNode, ZenohEntity, ecu_response
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import Vehicle
from tests.e2e.rigs.wire import Uri
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.chromium import Browser, needs_chromium
else:
    from plugins.wamp.tests.chromium import Browser, needs_chromium

pytestmark = needs_chromium

TOKEN: Final = "0123456789abcdef"
FOUND_S: Final = 30.0
UNREACHABLE: Final = "up://chassis/4003/1/0"
"""A receiver over TCP that has no connection."""
_UNREACHABLE_SERVICE: Final = """
[[endpoints.chassis.services]]
service = 0x4003
major = 1
protocol = "tcp"
events = [{{ id = 0x8001 }}]
offered = true
provider = "//hpc.vin1/4003/1/0"
remote = "127.0.0.1:{port}"

[observe]
listen = "127.0.0.1:0"
page = true
token = {{ env = "{variable}" }}
"""


class Shown(NamedTuple):
    vehicle: Vehicle
    app: ZenohEntity
    browser: Browser


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    """A vehicle, and its page in a browser that has been given the token."""
    monkeypatch.setenv("PAGE_TOKEN", TOKEN)
    ports = rig.free_ports()
    config = rig.write_config(tmp_path, ports)
    endpoints, section, plugins = config.read_text(encoding="utf-8").partition("[plugins.usubscription]\n")
    more = _UNREACHABLE_SERVICE.format(port=ports.receiver, variable="PAGE_TOKEN")
    config.write_text(f"{endpoints}{more}\n{section}{plugins}", encoding="utf-8")
    with (
        SomeipNode(ports.ecu, responder=ecu_response) as ecu,
        SomeipNode(ports.receiver) as receiver,
        StreamerProcess(config) as process,
        ZenohEntity(ports.backbone, "hpc.vin1") as app,
    ):
        (listening,) = wait_until(
            lambda: [each for each in process.log_records if each["event"] == "observe.listening"]
        )
        browser = Browser(tmp_path / "profile")
        try:
            browser.command("Page.navigate", url=f"http://127.0.0.1:{listening['port']}/")
            browser.until("document.getElementById('login')?.hidden === false")
            browser.run(
                f"document.getElementById('token').value = {json.dumps(TOKEN)};"
                "document.getElementById('login-form').requestSubmit()"
            )
            browser.until("document.getElementById('login').hidden")
            yield Shown(Vehicle(ports, process, ecu, receiver), app, browser)
        finally:
            browser.close()


def test_the_page_names_the_unreachable_subscriber_and_why(shown: Shown) -> None:
    vehicle, app, browser = shown
    topics = [vehicle.unused_topic() for _ in range(3)]
    for topic in topics:
        app.subscribe(topic, max_frequency=5.0)

    def beat(number: int) -> None:
        for topic in topics:
            vehicle.send_event(topic, b"%d" % number)

    with Metronome(50, beat):
        app.wait_events(topics[0], 3)
        browser.until("document.querySelectorAll('#targets tbody tr').length >= 3")
        browser.until("document.querySelectorAll('#routes path').length >= 1")
        began = time.monotonic()
        app.publish(Uri("hpc.vin1", 0x4003, 1, 0x8001), b"waits")
        browser.until(
            f"document.getElementById('problems').textContent.includes('Unreachable: {UNREACHABLE}')"
        )
        assert time.monotonic() - began < FOUND_S
        # One click tells why.
        browser.run("document.querySelector('#problems button').click()")
        browser.until("document.getElementById('answer').textContent.includes('chassis')")
        # The rates are those of the subscriptions: 5 of 50 per second pass.
        browser.until(
            "[...document.querySelectorAll('#targets tbody tr')].some((row) =>"
            " Math.abs(Number(row.cells[2].textContent) - 5) < 2.5 && Number(row.cells[3].textContent) === 5)"
        )
        browser.run(
            f"document.getElementById('source').value = {json.dumps(f'up:{topics[0]}')};"
            "document.getElementById('explain').click()"
        )
        browser.until("document.getElementById('answer').textContent.includes('at most 5 Hz')")
        # On a phone nothing but a table is wider than the screen, and every control is reached by Tab.
        browser.command(
            "Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=2, mobile=True
        )
        assert browser.run("document.documentElement.scrollWidth") <= 390
        reached = set()
        for _ in range(30):
            for kind in ("keyDown", "keyUp"):
                browser.command(
                    "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
                )
            reached.add(browser.run("document.activeElement.id || document.activeElement.textContent"))
        assert {"source", "sink", "why", "explain", "log"} <= reached
    assert browser.complaints == []


def test_the_page_names_a_peer_that_is_refused_again_and_again(shown: Shown) -> None:
    vehicle, _, browser = shown
    with ZenohEntity(vehicle.ports.cloud, "cloud") as neighbour:
        for _ in range(30):  # with an address of the vehicle
            neighbour.publish(Uri("hpc.vin1", 0x4003, 1, 0x8001))
        browser.until(
            "document.getElementById('problems').textContent.includes('Refused: hpc.vin1 at cloud: 30 refusals')"
        )
    assert browser.complaints == []


def test_names_of_other_hosts_are_text_and_a_dead_letter_is_redriven(shown: Shown) -> None:
    _, app, browser = shown
    topic = Uri("hpc.vin1", 0x4003, 1, 0x8001)
    app.send_message(wire.Attributes(wire.new_id(), wire.PUBLISH, topic, priority=wire.CS1, ttl=500), b"late")
    browser.until("document.querySelectorAll('#letters tbody tr').length === 1")
    browser.run("document.querySelector('#letters tbody tr button:last-of-type').click()")
    browser.until("document.getElementById('redriven').textContent.startsWith('1 redriven, 0 left')")
    evil = "<img src=x onerror=document.title='evil'>"
    browser.run(
        "show({...before, authority: EVIL, log: [{time_ms: 0, level: 'error', event: EVIL, fields: {a: EVIL}}],"
        " top: {...before.top, endpoints: [{...before.top.endpoints[0], name: EVIL, up: false,"
        " queues: [{subscriber: EVIL, queued: 1, blocked: 0, failures: 1}]}],"
        " intrusions: [{peer: EVIL, endpoint: EVIL, reason: EVIL, refusals: 1, per_s: 1, since_ms: 0}],"
        " targets: [{...TARGET, topic: EVIL, ingress: EVIL, endpoint: EVIL, subscriber: EVIL}]}})".replace(
            "EVIL", json.dumps(evil)
        ).replace(
            "TARGET",
            "{period_ns: 0, subscribers: [], received: 1, delivered: 1, throttled: 0, p50_ms: null, p99_ms: null}",
        )
    )
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.title") == "uStreamer"
    assert browser.run("document.getElementById('problems').textContent").count("<img") >= 5
    stopped = "show({...before, top: {...before.top, endpoints: [{...before.top.endpoints[0], name: 'far',"
    for state, text in (
        ("up: false, queued: 3", "The receiver behind far stopped reading"),
        ("up: true, queued: 3, blocked: 2", "A receiver behind far stopped reading; 2 messages wait."),
    ):
        browser.run(f"{stopped} link_problem: 'receiver_stalled', {state}, queues: []}}]}}}})")
        assert text in browser.run("document.getElementById('problems').textContent")
