# SPDX-License-Identifier: Apache-2.0
"""The page: the router serves it, it needs no other resource, and its client works in Node against a real router."""

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.connections import page
from ustreamer_wamp.events import Publication
from ustreamer_wamp.router import WampRouter

from tests.waiting import wait_until
from ustreamer.host.runtime.clock import SYSTEM_CLOCK

NODE = shutil.which("node")
USERS = [{"authid": "me", "ticket": "t1cket"}]


def made(**section: Any) -> WampRouter:
    whole = {"listen": "ws://127.0.0.1:0/ws", "anonymous": True, "users": USERS, "page": True, **section}
    router = WampRouter(msgspec.convert(whole, WampConfig), SYSTEM_CLOCK)
    router.server.open()
    return router


@pytest.fixture
def router() -> Iterator[WampRouter]:
    router = made()
    yield router
    router.server.close()


def port_of(router: WampRouter) -> int:
    return int(re.findall(r":(\d+)", router.server.urls[0])[0])


def get(router: WampRouter, path: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(router), timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, body


def test_the_page_is_there_and_needs_nothing_from_elsewhere(router: WampRouter) -> None:
    status, headers, body = get(router, "/")
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert "connect-src 'self'" in headers["content-security-policy"]
    assert re.findall(r"(?:src|href)\s*=|@import|url\(|https?://|//[a-z]+\.", body) == []
    assert '"__' not in body
    assert "`ws" not in body
    assert '"realm1"' in body
    assert "/ws`" in body
    assert get(router, "/other")[0] == 404


def test_without_the_key_there_is_no_page() -> None:
    router = made(page=False)
    assert get(router, "/")[0] == 404
    router.server.close()


def test_a_name_of_a_realm_does_not_end_the_script() -> None:
    _, body = page.pages('x"</script><b>')("/ws")["/"]()
    assert b"</script><b>" not in body
    assert rb"x\"\u003c/script>\u003cb>" in body


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("127.0.0.1:{port}", "http://127.0.0.1:{port}", True),
        ("localhost:{port}", "http://localhost:{port}", True),
        # a host name that resolves to this machine
        ("evil.example:{port}", "http://evil.example:{port}", False),
        ("127.0.0.1:{port}", "http://127.0.0.1:1", False),
        ("127.0.0.1:{port}", "http://evil.example", False),
    ],
)
def test_only_the_origin_of_the_page_may_connect(
    router: WampRouter, host: str, origin: str, allowed: bool
) -> None:
    port = port_of(router)
    headers = {"Host": host.format(port=port), "Origin": origin.format(port=port)}

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("GET", "/ws", skip_host=True)
    handshake = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "wamp.2.json",
    }
    for name, value in {**headers, **handshake}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == (101 if allowed else 403)
    connection.close()


DRIVER = """
const assert = (is, what) => { if (!is) { console.error("not so: " + what); process.exit(1); } };
const states = [], heard = [];
let wake = () => {};
const until = async (holds, what) => {
  const end = Date.now() + 10000;
  while (!holds()) { assert(Date.now() < end, what); await new Promise((done) => { wake = done; setTimeout(done, 20); }); }
};
const told = (state, reason) => { states.push(reason ? state + " " + reason : state); wake(); };
const wamp = new Wamp(process.argv[2], "realm1", told);
const ask = (line) => new Promise((done) => { process.stdin.once("data", done); console.log(line); });
(async () => {
  wamp.connect();
  await until(() => states.includes("open"), "open");
  const want = wamp.subscribe("com.a", {}, (args, kwargs, details) => heard.push([args, kwargs, details]), () => {});
  await until(() => wamp.ids.size === 1, "subscribed");
  const id = [...wamp.ids.keys()][0];
  wamp.subscribe("com.a", { max_frequency: 5 }, want.onEvent, () => {});
  await until(() => wamp.open.size === 0, "subscribed again");
  assert(wamp.ids.size === 1 && wamp.ids.has(id), "the same id");
  await ask("publish");
  await until(() => heard.length === 1, "an event");
  assert(JSON.stringify(heard[0]) === '[[1.5,"\\\\u0000AP8="],{"k":true},{}]', JSON.stringify(heard[0]));
  assert(readable(heard[0][0][1]).text === "00 ff" && readable(heard[0][0][1]).number === 255, "bytes");
  assert(readable({ speed: 12.345, on: true }).text === "speed 12.35  on true", "an object");
  assert(readable({ speed: 12.345 }).number === 12.345 && readable(null).number === null, "a number");
  let refused = "";
  wamp.subscribe("not a uri", {}, () => {}, (reason) => { refused = reason; });
  await until(() => refused, "an error");
  assert(refused === "wamp.error.invalid_uri" && wamp.wanted.size === 1, refused);
  await ask("restart");
  await until(() => states.filter((each) => each === "open").length === 2 && wamp.ids.size === 1, "back, and subscribed");
  await ask("publish");
  await until(() => heard.length === 2, "an event after it was gone");
  wamp.unsubscribe(want);
  await ask("unsubscribed");
  wamp.close();
  const other = new Wamp(process.argv[2], "realm1", told);
  other.login = { user: "me", ticket: "wrong" };
  other.connect();
  await until(() => states.some((each) => each === "closed wamp.error.authentication_denied"), "refused");
  other.login.ticket = "t1cket";
  states.length = 0;
  other.connect();
  await until(() => states.includes("open"), "logged in");
  other.close();
  console.log("done");
  process.exit(0);
})();
"""


@pytest.mark.skipif(
    NODE is None, reason="the client of the page runs in a browser or in Node, and there is no node"
)
def test_the_client_of_the_page_works_and_reconnects(router: WampRouter, tmp_path: Path) -> None:
    _, _, body = get(router, "/")
    (client,) = re.findall(r'<script id="client">(.*?)</script>', body, re.DOTALL)
    script = tmp_path / "client.js"
    script.write_text(client + DRIVER, encoding="utf-8")
    url = router.server.urls[0]
    running = [router]

    def publish() -> None:
        realm = running[-1].realm
        publication = Publication(realm.new_id(), "com.a", [1.5, b"\x00\xff"], {"k": True})
        running[-1].server.run_on_loop(realm.fan_out, publication)

    assert NODE is not None
    command = [NODE, "--no-warnings", "--experimental-websocket", str(script), url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        assert node.stderr is not None
        notified = []
        for line in node.stdout:
            notified.append(line.strip())
            if notified[-1] == "publish":
                publish()
            elif notified[-1] == "restart":
                running[-1].server.close()
                running.append(made(listen=url))
            elif notified[-1] == "unsubscribed":
                wait_until(lambda: not len(running[-1].realm.broker), "the end of the subscription")
            node.stdin.write("\n")
            node.stdin.flush()
            if notified[-1] == "done":
                break
        failure = node.stderr.read()
    for each in running[1:]:
        each.server.close()
    assert (notified, failure) == (["publish", "restart", "publish", "unsubscribed", "done"], "")


def test_every_name_that_the_page_requests_is_in_it() -> None:
    _, body = page.pages("realm1")("/ws")["/"]()
    text = body.decode()
    sent_request = set(re.findall(r'\$\("(\w+)"\)', text))
    assert sent_request <= set(re.findall(r'\bid="(\w+)"', text))
    assert json.dumps("realm1") in text
