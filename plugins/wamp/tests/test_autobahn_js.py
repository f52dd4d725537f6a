# SPDX-License-Identifier: Apache-2.0
"""A second third-party client: Autobahn|JS, in node and in Chromium, over every serializer. It runs `js/story.js`."""

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.events import Publication
from ustreamer_wamp.router import WampRouter

from ustreamer.host.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from tests.chromium import Browser, needs_chromium
else:
    from plugins.wamp.tests.chromium import Browser, needs_chromium

JS = Path(__file__).resolve().parent / "js"
MODULES = JS.parents[3] / "build" / "autobahn-js" / "node_modules"
"""The directory into which `make test` installs the packages of js/package.json."""
NODE = shutil.which("node")
DEADLINE_S = 30.0
HTML = "<!doctype html><script src=autobahn.min.js></script><script src=story.js></script>"

Reports = Callable[[], dict[str, Any]]
"""The next output of the client."""


@pytest.fixture(autouse=True, scope="module")
def autobahn_js() -> None:
    if not (MODULES / "autobahn").is_dir():
        # Also in CI: npm's registry is a third-party service, and its outage is no fault of this project.
        pytest.skip(f"Autobahn|JS is not in {MODULES}: `make test` installs it, by npm")


def running(url: str, *origins: str) -> WampRouter:
    section = {
        "listen": url,
        "origins": origins,
        "anonymous": True,
        "users": [{"authid": "tick", "ticket": "t1cket", "publish": [""]}],
    }
    router = WampRouter(msgspec.convert(section, WampConfig), SYSTEM_CLOCK)
    router.server.open()
    return router


def cut(router: WampRouter) -> None:
    """Kill a router as a power cut does: no session is closed."""

    def abort() -> None:
        for each in list(router.server._connections):
            each.abort()

    router.server.run_on_loop(abort)
    router.server.close()


def revoke(router: WampRouter, topic: str) -> None:
    """End a topic's subscriptions, as for one that uSubscription has ended."""
    for member in list(router.realm.sessions.values()):
        member.on_subscription_revoked(topic, "because")


def notified(
    next_report: Reports, router: WampRouter, again: Callable[[str], WampRouter], serializer: str
) -> WampRouter:
    """Follow the output of the story and do the step that it waits for. Returns the last router."""
    welcome = next_report()
    assert welcome["protocol"] == f"wamp.2.{serializer}"
    assert welcome["authmethods"] == ["anonymous", "ticket"]
    assert welcome["features"]["pattern_based_subscription"] is True

    first, same, pattern = next_report()["ids"]
    assert first == same != pattern

    received = next_report()
    values = [[1, "zwei", 2.5], {"k": [None, True]}, "com.news"]
    assert received["events"] == [["first", *values], ["again", *values], ["pattern", [5], {}, "com.any.x"]]
    assert 1 <= received["published"] <= 2**53

    assert next_report()["step"] == "bytes next"
    router.server.run_on_loop(
        router.realm.fan_out, Publication(router.realm.new_id(), "com.bytes", [b"\0\xff"], {})
    )
    # Autobahn|JS does not decode the WAMP form of bytes in JSON: a NUL and Base64. The application decodes it.
    shown = "\0AP8=" if serializer == "json" else {"bytes": "00ff"}
    assert next_report()["events"] == [["bytes", [shown], {}, "com.bytes"]]

    refused = next_report()
    assert set(refused["topics"].values()) == {"wamp.error.invalid_uri"}
    assert len(refused["topics"]) == 5
    assert refused["unknown"] == "wamp.error.no_such_subscription"
    assert refused["publish"] == "wamp.error.not_authorized"
    assert refused["reserved"] == "wamp.error.invalid_uri"

    unsubscribed = next_report()
    last = [["again", ["one left"], {}, "com.news"], ["pattern", ["last"], {}, "com.any.x"]]
    assert [[name, args, kwargs, topic] for name, args, kwargs, topic in unsubscribed["events"]] == last
    assert unsubscribed["active"] == [False, False, True]

    assert next_report()["step"] == "revoke"
    router.server.run_on_loop(revoke, router, "com.bytes")
    assert next_report() == {"step": "revoked", "why": "up.subscription.ended", "active": False}

    assert next_report()["step"] == "kill router"
    url = router.server.urls[0]
    cut(router)
    router = again(url)
    back = next_report()
    assert back["events"] == [["back", ["again"], {}, "com.news"]]
    assert back["ends"] == ["lost", None]
    assert next_report() == {"step": "over"}
    return router


@pytest.fixture
def routers() -> Iterator[Callable[..., WampRouter]]:
    made: list[WampRouter] = []

    def make(url: str, *origins: str) -> WampRouter:
        made.append(running(url, *origins))
        return made[-1]

    yield make
    for each in made:
        each.server.close()


@pytest.mark.skipif(NODE is None, reason="there is no node (Debian: apt install nodejs npm)")
@pytest.mark.parametrize("serializer", ["json", "msgpack", "cbor"])
def test_the_story_in_node(serializer: str, routers: Callable[..., WampRouter], tmp_path: Path) -> None:
    router = routers("ws://127.0.0.1:0/ws")
    command = [
        str(NODE),
        str(JS / "node.js"),
        str(MODULES / "autobahn"),
        router.server.urls[0],
        serializer,
    ]
    complaints = tmp_path / "stderr"
    with (
        complaints.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as node,
    ):
        words: Queue[str] = Queue()
        assert node.stdout is not None

        def read(lines: Iterable[str]) -> None:
            for each in lines:
                words.put(each)

        reader = threading.Thread(target=read, args=[node.stdout])
        reader.start()

        def next_report() -> dict[str, Any]:
            reported: dict[str, Any] = json.loads(words.get(timeout=DEADLINE_S))
            assert reported["step"] != "failed", reported
            return reported

        try:
            notified(next_report, router, routers, serializer)
            assert node.wait(DEADLINE_S) == 0
        finally:
            node.kill()
            reader.join()


class Site(BaseHTTPRequestHandler):
    """A third-party page, which the router does not serve. So its origin must be configured."""

    def do_GET(self) -> None:
        files = {
            "/": ("text/html", HTML.encode()),
            "/story.js": ("text/javascript", (JS / "story.js").read_bytes()),
            "/autobahn.min.js": (
                "text/javascript",
                (MODULES / "autobahn-browser" / "autobahn.min.js").read_bytes(),
            ),
        }
        kind, body = files.get(self.path, ("", b""))
        self.send_response(200 if kind else 404)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """No code reads it."""


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@needs_chromium
@pytest.mark.parametrize("serializer", ["json", "msgpack", "cbor"])
def test_the_story_in_a_browser(
    serializer: str, routers: Callable[..., WampRouter], site: str, tmp_path: Path
) -> None:
    router = routers("ws://127.0.0.1:0/ws", site)
    browser = Browser(tmp_path / "profile")
    try:
        browser.command("Page.navigate", url=f"{site}/")
        browser.until("typeof story === 'function' && typeof autobahn === 'object'")
        start = (
            "reported = []; story(autobahn, {}, {}, (seen) => reported.push(JSON.stringify(seen)))"
            ".catch((error) => reported.push(JSON.stringify({{step: 'failed', why: String(error.stack || error)}}))); 0"
        )
        browser.run(start.format(json.dumps(router.server.urls[0]), json.dumps(serializer)))

        def next_report() -> dict[str, Any]:
            reported: dict[str, Any] = json.loads(browser.until("reported.shift()"))
            assert reported["step"] != "failed", reported
            return reported

        notified(next_report, router, lambda url: routers(url, site), serializer)
        assert browser.complaints == []
    finally:
        browser.close()


@needs_chromium
def test_a_page_from_elsewhere_gets_no_session(
    routers: Callable[..., WampRouter], site: str, tmp_path: Path
) -> None:
    router = routers("ws://127.0.0.1:0/ws", "http://dashboard.example")
    browser = Browser(tmp_path / "profile")
    try:
        browser.command("Page.navigate", url=f"{site}/")
        browser.until("typeof autobahn === 'object'")
        options = {"url": router.server.urls[0], "realm": "realm1", "max_retries": 0}
        browser.run(
            f"end = null; c = new autobahn.Connection({json.dumps(options)}); c.onopen = () => {{ end = 'open'; }};"
            "c.onclose = (reason) => { end = reason; return true; }; c.open(); 0"
        )
        assert browser.until("end") == "unreachable"
        assert router.counts["sessions"] == 0
        assert router.counts["refused_handshake"] == 1
    finally:
        browser.close()
