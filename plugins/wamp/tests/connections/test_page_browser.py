# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser."""

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.events import Publication
from ustreamer_wamp.realm import JoinedSession, NullBackend, SubscribeCallback
from ustreamer_wamp.router import WampRouter
from ustreamer_wamp.uri import Match

from tests.waiting import wait_until
from ustreamer.host.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from tests.chromium import Browser, needs_chromium
else:
    from plugins.wamp.tests.chromium import Browser, needs_chromium

WHEEL, DOOR = "up.chassis.1234.0.1.8001", "up.chassis.2001.0.1.8001"

pytestmark = needs_chromium


class PeriodBackend(NullBackend):
    """A gate that counts the requests by content."""

    def __init__(self) -> None:
        self.open_topics: dict[str, int] = {}

    def open_subscription(
        self, session: JoinedSession, topic: str, match: Match, period_ns: int, done: SubscribeCallback
    ) -> None:
        self.open_topics[topic] = period_ns
        done(None)

    def close_subscription(self, session: JoinedSession, topic: str, match: Match) -> None:
        self.open_topics.pop(topic, None)


class Car:
    """A router whose realm has the topics wheel and door."""

    def __init__(self, listen: str = "ws://127.0.0.1:0/ws") -> None:
        self.backend = PeriodBackend()
        config = msgspec.convert({"listen": listen, "anonymous": True, "page": True}, WampConfig)
        self.router = WampRouter(config, SYSTEM_CLOCK, self.backend)
        self.router.server.open()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drive)
        self._thread.start()

    def _drive(self) -> None:
        realm = self.router.realm
        for tick in itertools.count():
            if self._stop.wait(0.02):
                return
            for topic, value in ((WHEEL, {"m/s": 10 + tick % 100 / 10}), (DOOR, b"\x03\x01")):
                self.router.server.run_on_loop(realm.fan_out, Publication(realm.new_id(), topic, [value], {}))

    @property
    def page(self) -> str:
        return self.router.server.urls[0].replace("ws://", "http://").removesuffix("ws")

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.router.server.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


def test_values_are_found_shown_plotted_throttled_and_released(browser: Browser) -> None:
    car = Car()
    try:
        browser.command("Page.navigate", url=car.page)
        browser.until("document.getElementById('state')?.textContent === 'connected'")
        # Topics are found by themselves, and a click subscribes.
        browser.until(
            f"[...document.querySelectorAll('.topic')].some((each) => each.textContent === '{WHEEL}')"
        )
        assert "Click a topic" in browser.run("document.getElementById('cards').innerText")
        browser.run(f"seen.get('{WHEEL}').click()")
        browser.run(f"seen.get('{DOOR}').click()")
        assert "Click a topic" not in browser.run("document.getElementById('cards').innerText")
        browser.until("/^m.s \\d+/.test(document.querySelector('.card .value').textContent)")
        browser.until("document.querySelectorAll('.card .value')[1].textContent === '03 01'")
        first = browser.run("document.querySelector('.card .value').textContent")
        browser.until(f"document.querySelector('.card .value').textContent !== {json.dumps(first)}")
        # A plot: some of its pixels are drawn.
        painted = (
            "(() => { const c = document.querySelector('canvas');"
            " return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((each) => each); })()"
        )
        browser.until(painted)
        # The axis shows the minimum and maximum.
        high, low = (f"+document.querySelector('.plot span:nth-of-type({at})').textContent" for at in (1, 2))
        browser.until(f"{low} >= 10 && {low} < {high} && {high} <= 19.9")
        # The slider is a SUBSCRIBE with another rate, of the same subscription.
        assert car.backend.open_topics[WHEEL] == 0
        browser.run(
            "(() => { const s = document.querySelector('input[type=range]'); s.value = 0;"
            " s.dispatchEvent(new Event('input')); s.dispatchEvent(new Event('change')); })()"
        )
        browser.until("document.querySelector('.card').innerText.includes('0.5 Hz at most')")
        wait_until(lambda: car.backend.open_topics[WHEEL] == 2_000_000_000, "the slower rate")
        # The pattern by which topics are found is given up after a while: it would set the rate of everything.
        wait_until(lambda: "up." not in car.backend.open_topics, "the end of the pattern")
        # Another click gives it up.
        browser.run(f"seen.get('{WHEEL}').click()")
        browser.until("document.querySelectorAll('.card').length === 1")
        wait_until(lambda: WHEEL not in car.backend.open_topics, "the end of the subscription")
        assert DOOR in car.backend.open_topics
        assert browser.complaints == []
    finally:
        car.close()


def test_the_page_reports_a_lost_connection_and_reconnects(browser: Browser) -> None:
    car = Car()
    url = car.router.server.urls[0]
    try:
        browser.command("Page.navigate", url=car.page)
        browser.until("document.getElementById('state')?.textContent === 'connected'")
        browser.run(f"show('{WHEEL}')")
        browser.until("/^m.s/.test(document.querySelector('.card .value').textContent)")
    finally:
        car.close()
    browser.until("document.getElementById('state').textContent.startsWith('disconnected')")
    browser.until("document.getElementById('state').textContent.endsWith(', trying again')")
    assert browser.run("document.getElementById('cards').className") == "stale", (
        "it shows that this is of before"
    )
    again = Car(url)
    try:
        browser.until("document.getElementById('state').textContent === 'connected'")
        assert browser.run("document.getElementById('cards').className") == ""
        before = browser.run(f"cards.get('{WHEEL}').shown.text")
        browser.until(f"cards.get('{WHEEL}').shown.text !== {json.dumps(before)}")
        assert WHEEL in again.backend.open_topics
    finally:
        again.close()


def test_the_page_shows_why_a_subscription_ended(browser: Browser) -> None:
    car = Car()
    try:
        browser.command("Page.navigate", url=car.page)
        browser.until("document.getElementById('state')?.textContent === 'connected'")
        browser.run(f"show('{WHEEL}')")
        browser.until("/^m.s/.test(document.querySelector('.card .value').textContent)")

        def revoke() -> None:
            for member in list(car.router.realm.sessions.values()):
                member.on_subscription_revoked(WHEEL, "the wheel is gone")

        car.router.server.run_on_loop(revoke)
        browser.until("document.querySelector('.card').innerText.includes('the wheel is gone')")
        browser.run(f"draw(cards.get('{WHEEL}'), performance.now())")
        assert "the wheel is gone" in browser.run("document.querySelector('.card').innerText"), "and it stays"
        assert WHEEL not in car.backend.open_topics
        wanted = "[...wamp.wanted.values()].some((each) => each.topic === '{}')"
        assert browser.run(wanted.format(WHEEL)) is False
        assert browser.complaints == []
    finally:
        car.close()
