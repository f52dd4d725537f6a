# SPDX-License-Identifier: Apache-2.0
"""Sends events of an ECU to a page in your browser, and to a dashboard in this process that counts."""

import functools
import http.server
import json
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from examples.rig import Example, RunningStreamer, arguments_of, cycle, figures, numbered, show, wait
from ustreamer.uprotocol.uuri import UUri

SERVICE, EVENT = 0x1234, 0x8001
SPEED: Final = UUri("chassis", SERVICE, 1, EVENT)
TOPIC: Final = "up.chassis.1234.0.1.8001"  # the same in WAMP
PAGE: Final = "dashboard.html"
HZ: Final = 100
HELLO, WELCOME, SUBSCRIBE, SUBSCRIBED, EVENT_OF_WAMP = 1, 2, 32, 33, 36


@contextmanager
def dashboard(port: int, max_frequency: float) -> Iterator[list[int]]:
    """What dashboard.html does, in Python: subscribe with a limit. Gives the numbers of the events, as they arrive."""
    numbers: list[int] = []
    with connect(f"ws://127.0.0.1:{port}/ws", subprotocols=[Subprotocol("wamp.2.json")]) as socket:
        _request(socket, WELCOME, HELLO, "realm1", {"roles": {"subscriber": {}}})
        _request(socket, SUBSCRIBED, SUBSCRIBE, 1, {"max_frequency": max_frequency}, TOPIC)
        thread = Thread(target=_receive, args=(socket, numbers))
        thread.start()
        yield numbers
    thread.join()


def _request(socket: ClientConnection, expected: int, *message: Any) -> None:
    socket.send(json.dumps(message))
    answer = json.loads(socket.recv())
    if answer[0] != expected:
        raise SystemExit(f"the gateway answered {answer}")


def _receive(socket: ClientConnection, numbers: list[int]) -> None:
    for text in socket:  # ends with the connection
        code, *fields = json.loads(text)
        if code == EVENT_OF_WAMP:
            numbers.append(fields[3][0]["number"])


class Pages(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(page: Path, port: int) -> Iterator[None]:
    """Serve the folder of a page, as the web server of a workshop."""
    handler = functools.partial(Pages, directory=str(page.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def target_of(gateway: RunningStreamer, limit: float) -> Any:
    """The counters of all dashboards with this limit; a page in a browser has its own."""
    return next(each for each in gateway.top()["targets"] if each["period_ns"] == round(1e9 / limit))


def main() -> int:
    parser = arguments_of("dashboard", __doc__, events=500)
    parser.add_argument(
        "--limit", type=float, default=10, metavar="HZ", help="rate of the counting dashboard (10)"
    )
    arguments = parser.parse_args()
    with Example(__file__, arguments.ports) as example:
        gateway = example.start("gateway")
        ecu = example.ecu(30500, 30501)
        web = example.port(8081)
        page = example.file(PAGE)
        with serving(page, web), dashboard(example.port(8080), arguments.limit) as numbers:
            print(f"open http://127.0.0.1:{web}/{PAGE}", flush=True)
            for number in cycle(arguments.events, HZ):
                ecu.send_event(
                    SERVICE, EVENT, numbered(number) + struct.pack(">f", 13.9 + number % 200 / 100)
                )
            wait(lambda: gateway.received(SPEED) >= arguments.events)
            target = target_of(gateway, arguments.limit)
            wait(lambda: len(numbers) >= target["delivered"])
        gateway.stop()
    found = figures(range(arguments.events), numbers, target["throttled"])
    show({f"at most {arguments.limit:g} Hz": found})
    return 1 if found.lost or found.twice else 0


if __name__ == "__main__":
    sys.exit(main())
