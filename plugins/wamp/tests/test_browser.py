# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: headless Chromium, by its own debugging protocol."""

import itertools
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.events import Publication
from ustreamer_wamp.realm import Done, Member, OpenGate
from ustreamer_wamp.router import Router
from ustreamer_wamp.uri import Match
from websockets.sync.client import ClientConnection, connect

from ustreamer.host.clock import SYSTEM_CLOCK

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DEADLINE_S = 30.0
WHEEL, DOOR = "up.chassis.1234.0.1.8001", "up.chassis.2001.0.1.8001"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="the page is for browsers, and there is no chromium (Debian: apt install chromium)",
)


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, directory: Path) -> None:
        assert CHROMIUM is not None
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        # Nothing but the router can be reached, so that whatever the page would need from elsewhere is missed.
        offline = [
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            "--disable-background-networking",
        ]
        self._process = subprocess.Popen(
            [
                CHROMIUM,
                *flags,
                *offline,
                "--remote-debugging-port=0",
                f"--user-data-dir={directory}",
                "about:blank",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        port = ""
        for line in self._process.stderr:
            if found := re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line):
                port = found[1]
                break
        threading.Thread(target=self._process.stderr.read, daemon=True).start()  # or the pipe fills
        request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
        made = json.load(urllib.request.urlopen(request, timeout=DEADLINE_S))
        self._connect = connect(made["webSocketDebuggerUrl"], compression=None, max_size=None)
        self._socket: ClientConnection = self._connect.__enter__()
        self._ids = itertools.count(1)
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        id = next(self._ids)
        self._socket.send(json.dumps({"id": id, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=DEADLINE_S))
            if message.get("id") == id:
                assert "error" not in message, message
                return dict(message["result"])
            if message["method"] in ("Runtime.exceptionThrown", "Network.loadingFailed"):
                self.complaints.append(json.dumps(message["params"])[:500])

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + DEADLINE_S
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"never true: {script}\n{self.run('document.body.innerText')}"
            time.sleep(0.02)
        return value

    def close(self) -> None:
        self._connect.__exit__(None, None, None)
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()


class Periods(OpenGate):
    """A gate that notes how often what was asked for."""

    def __init__(self) -> None:
        self.open_topics: dict[str, int] = {}

    def open(self, member: Member, topic: str, match: Match, period_ns: int, done: Done) -> None:
        self.open_topics[topic] = period_ns
        done(None)

    def close(self, member: Member, topic: str, match: Match) -> None:
        self.open_topics.pop(topic, None)


class Car:
    """A router whose realm has a wheel and a door."""

    def __init__(self, listen: str = "ws://127.0.0.1:0/ws") -> None:
        self.gate = Periods()
        config = msgspec.convert({"listen": listen, "anonymous": True, "page": True}, WampConfig)
        self.router = Router(config, SYSTEM_CLOCK, self.gate)
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
                self.router.server.call(realm.spread, Publication(realm.new_id(), topic, [value], {}))

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


def test_values_are_found_shown_plotted_throttled_and_given_up(browser: Browser) -> None:
    car = Car()
    try:
        browser.command("Page.navigate", url=car.page)
        browser.until("document.getElementById('state')?.textContent === 'open'")
        # Topics are found by themselves, and a click subscribes.
        browser.until(
            f"[...document.querySelectorAll('.topic')].some((each) => each.textContent === '{WHEEL}')"
        )
        browser.run(f"seen.get('{WHEEL}').click()")
        browser.run(f"seen.get('{DOOR}').click()")
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
        # The slider is a SUBSCRIBE with another rate, of the same subscription.
        assert car.gate.open_topics[WHEEL] == 0
        browser.run(
            "(() => { const s = document.querySelector('input[type=range]'); s.value = 0;"
            " s.dispatchEvent(new Event('input')); s.dispatchEvent(new Event('change')); })()"
        )
        browser.until("document.querySelector('.card').innerText.includes('0.5 Hz at most')")
        end = time.monotonic() + DEADLINE_S
        while car.gate.open_topics[WHEEL] != 2_000_000_000:
            assert time.monotonic() < end
            time.sleep(0.01)
        # The pattern by which topics are found is given up after a while: it would set the rate of everything.
        while "up." in car.gate.open_topics:
            assert time.monotonic() < end
            time.sleep(0.05)
        # Another click gives it up.
        browser.run(f"seen.get('{WHEEL}').click()")
        browser.until("document.querySelectorAll('.card').length === 1")
        while WHEEL in car.gate.open_topics:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert DOOR in car.gate.open_topics
        assert browser.complaints == []
    finally:
        car.close()


def test_the_page_says_when_it_is_cut_off_and_comes_back_by_itself(browser: Browser) -> None:
    car = Car()
    url = car.router.server.urls[0]
    try:
        browser.command("Page.navigate", url=car.page)
        browser.until("document.getElementById('state')?.textContent === 'open'")
        browser.run(f"show('{WHEEL}')")
        browser.until("/^m.s/.test(document.querySelector('.card .value').textContent)")
    finally:
        car.close()
    browser.until("document.getElementById('state').textContent.startsWith('closed')")
    again = Car(url)
    try:
        browser.until("document.getElementById('state').textContent === 'open'")
        before = browser.run(f"cards.get('{WHEEL}').shown.text")
        browser.until(f"cards.get('{WHEEL}').shown.text !== {json.dumps(before)}")
        assert WHEEL in again.gate.open_topics
    finally:
        again.close()
