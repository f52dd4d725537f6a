# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.wamp`: our WAMP router and Crossbar side by side: what an event costs the server per subscriber.

One publisher and 1, 10 and 100 subscribers over WebSocket, in JSON, 128 bytes an event. Both servers run at the same time and
are loaded in turn. Counted is the CPU time of the server's processes, by the kernel: it does not depend on who else is busy.
Crossbar gets an environment of its own under build/, made at the first run; it is nobody's dependency.

Then, for ours alone: the latency of 90 clients, while 10 others read, and while those do not.
"""

import argparse
import base64
import json
import selectors
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).resolve().parent.parent
CROSSBAR: Final = REPO / "build" / "crossbar"
SUBSCRIBERS: Final = (1, 10, 100)
WINDOW: Final = 100
TOPIC: Final = "com.example.benchmark"
_START_S: Final = 60.0
_TICKET: Final = "t"
_TEXT: Final = 0x81
_PING: Final = 0x89
_PONG: Final = b"\x8a\x80\0\0\0\0"

# ------------------------------------------------------------------------------------------------------------- clients


class Client:
    """A WebSocket client for one subprotocol, as little as it takes: the clients must not be what is measured."""

    def __init__(self, port: int, *, publisher: bool = False) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(b"0123456789abcdef").decode()
        self.socket.sendall(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: wamp.2.json\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(head.decode())
        roles: dict[str, object] = {"publisher": {}} if publisher else {"subscriber": {}}
        login = {"authmethods": ["ticket", "anonymous"], "authid": "p"} if publisher else {}
        answer = self.ask([1, "realm1", {"roles": roles, **login}])
        if answer[0] == 4:
            answer = self.ask([5, _TICKET, {}])
        if answer[0] != 2:
            raise RuntimeError(str(answer))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, message: list[object]) -> list[object]:
        self.send(masked(json.dumps(message).encode()))
        first, size = self._exactly(2)
        size &= 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._exactly(2))
        answer: list[object] = json.loads(self._exactly(size))
        return answer if first else []

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return data


def masked(payload: bytes) -> bytes:
    """A text frame of a client; a mask of zeros is one, too."""
    size = len(payload)
    head = bytes([0x81, 0x80 | size]) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
    return head + b"\0\0\0\0" + payload


class Readers:
    """Subscribers on one thread; `counts` has how many events each has got, `latencies_ns` how old they were."""

    def __init__(self, port: int, subscribers: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.counts = [0] * subscribers
        self.latencies_ns: list[int] | None = None
        self._buffers = [bytearray() for _ in range(subscribers)]
        self.clients = [Client(port) for _ in range(subscribers)]
        for index, client in enumerate(self.clients):
            if client.ask([32, 1, {}, TOPIC])[0] != 33:
                raise RuntimeError("not subscribed")
            client.socket.setblocking(False)
            self._selector.register(client.socket, selectors.EVENT_READ, index)
        self._over = False
        self._stalled: set[int] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(0.1):
                index: int = key.data
                try:
                    self._take(index, self.clients[index].socket.recv(1 << 20))
                except BlockingIOError:
                    continue

    def _take(self, index: int, data: bytes) -> None:
        buffer = self._buffers[index]
        buffer += data
        at, end, events = 0, len(buffer), 0
        while end - at >= 4:
            size, head = buffer[at + 1], 2
            if size == 126:
                size, head = struct.unpack_from("!H", buffer, at + 2)[0], 4
            if end - at < head + size:
                break
            if buffer[at] == _PING:
                self.clients[index].socket.send(_PONG)
            events += buffer[at] == _TEXT
            if self.latencies_ns is not None and buffer[at] == _TEXT:
                self._note(bytes(buffer[at + head : at + head + size]))
            at += head + size
        del buffer[:at]
        self.counts[index] += events

    def _note(self, event: bytes) -> None:
        message = json.loads(event)
        assert self.latencies_ns is not None
        if message[0] == 36:
            self.latencies_ns.append(time.monotonic_ns() - message[5]["sent"])

    def have(self, events: int) -> bool:
        """Whether everybody who reads has got so many."""
        return min(count for index, count in enumerate(self.counts) if index not in self._stalled) >= events

    def stall(self, index: int) -> None:
        self._stalled.add(index)
        self._selector.unregister(self.clients[index].socket)

    def read_again(self, index: int) -> None:
        self._selector.register(self.clients[index].socket, selectors.EVENT_READ, index)

    def close(self) -> None:
        self._over = True
        self._thread.join()
        for client in self.clients:
            client.socket.close()


# ------------------------------------------------------------------------------------------------------------- servers


class Server:
    """A server in a process of its own, and the CPU time of that and its children."""

    def __init__(self, name: str, command: list[str], port: int) -> None:
        self.name = name
        self.port = port
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=REPO
        )
        end = time.monotonic() + _START_S
        while True:
            try:
                Client(port).socket.close()
                return
            except (OSError, RuntimeError):
                if self._process.poll() is not None or time.monotonic() > end:
                    self.close()
                    assert self._process.stderr is not None
                    raise RuntimeError(
                        f"{name} did not start: {self._process.stderr.read()[-2000:]}"
                    ) from None
                time.sleep(0.2)

    def cpu_ns(self) -> int:
        return sum(_cpu_ns(pid) for pid in _family(self._process.pid))

    def close(self) -> None:
        family = _family(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        for pid in family:
            if Path(f"/proc/{pid}").exists() and pid != self._process.pid:
                subprocess.run(["kill", str(pid)], check=False)  # noqa: S607  # one that outlived its parent


def _family(pid: int) -> list[int]:
    found = [pid]
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text(encoding="ascii").split() if children.exists() else ():
        found += _family(int(child))
    return found


def _cpu_ns(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks)


def serve(port: int) -> None:
    """Ours, until the process is ended."""
    from ustreamer_wamp.config import WampConfig
    from ustreamer_wamp.router import Router
    from ustreamer_wamp.users import User

    from ustreamer.host.clock import SYSTEM_CLOCK

    publisher = User(authid="p", ticket=_TICKET, publish=("",))
    config = WampConfig(listen=f"ws://127.0.0.1:{port}/ws", anonymous=True, users=(publisher,))
    Router(config, SYSTEM_CLOCK).server.open()
    threading.Event().wait()


def crossbar(python: Path, port: int) -> list[str]:
    """How to start Crossbar with one realm in which everybody may do everything."""
    node = CROSSBAR.parent / "crossbar-node"
    (node / ".crossbar").mkdir(parents=True, exist_ok=True)
    allow = {"call": True, "register": True, "publish": True, "subscribe": True}
    permission = {"uri": "", "match": "prefix", "allow": allow, "cache": True}
    transport = {
        "type": "web",
        "endpoint": {"type": "tcp", "port": port, "interface": "127.0.0.1"},
        "paths": {"/": {"type": "json", "value": {}}, "ws": {"type": "websocket", "serializers": ["json"]}},
    }
    worker = {
        "type": "router",
        "realms": [{"name": "realm1", "roles": [{"name": "anonymous", "permissions": [permission]}]}],
        "transports": [transport],
    }
    config = {"version": 2, "controller": {}, "workers": [worker]}
    (node / ".crossbar" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return [
        str(python.parent / "crossbar"),
        "start",
        "--cbdir",
        str(node / ".crossbar"),
        "--loglevel",
        "warn",
    ]


def crossbar_python() -> Path:
    """The interpreter of an environment with Crossbar; made if there is none, which takes minutes and 350 MB."""
    python = CROSSBAR / "bin" / "python"
    if not (CROSSBAR / "bin" / "crossbar").exists():
        print(f"installing crossbar into {CROSSBAR}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(CROSSBAR)], check=True)
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install", "crossbar>=26,<27"]
        subprocess.run(pip, check=True)
    return python


# ------------------------------------------------------------------------------------------------------------- measuring


@contextmanager
def readers(port: int, subscribers: int) -> Iterator[Readers]:
    made = Readers(port, subscribers)
    try:
        yield made
    finally:
        made.close()


def per_delivery_us(server: Server, subscribers: int, seconds: float) -> float:
    """CPU time of the server for each event that a subscriber got, in us."""
    payload = masked(
        json.dumps([16, 1, {}, TOPIC, [], {"id": "x" * 36, "a": 1.5, "b": 12345, "c": True}]).encode()
    )
    with readers(server.port, subscribers) as made:
        publisher = Client(server.port, publisher=True)
        _flow(publisher, made, payload, seconds / 4)
        before, counted = server.cpu_ns(), sum(made.counts)
        _flow(publisher, made, payload, seconds)
        spent, got = server.cpu_ns() - before, sum(made.counts) - counted
        publisher.socket.close()
    return spent / got / 1000


def _flow(publisher: Client, made: Readers, payload: bytes, seconds: float) -> None:
    """Publish in windows: the next one when the slowest subscriber has all of this one."""
    end = time.monotonic() + seconds
    goal = max(made.counts)
    while time.monotonic() < end:
        publisher.send(payload * WINDOW)
        goal += WINDOW
        _until(partial(made.have, goal))


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError("events are missing")
        time.sleep(0.0002)


def p99_us(server: Server, made: Readers, seconds: float, hertz: float = 50.0) -> float:
    """The latency that 99 of 100 events stay below, publish to receive."""
    publisher = Client(server.port, publisher=True)
    made.latencies_ns = []
    began = time.monotonic()
    for number in range(round(seconds * hertz)):
        time.sleep(max(0.0, began + number / hertz - time.monotonic()))
        message = [16, 1, {}, TOPIC, [], {"sent": time.monotonic_ns(), "x": "x" * 60}]
        publisher.send(masked(json.dumps(message).encode()))
    time.sleep(0.2)
    publisher.socket.close()
    latencies, made.latencies_ns = made.latencies_ns, None
    return statistics.quantiles(latencies, n=100)[98] / 1000


def _fill(server: Server, made: Readers) -> None:
    """Send more than the kernel keeps for clients that do not read."""
    publisher = Client(server.port, publisher=True)
    payload = masked(json.dumps([16, 1, {}, TOPIC, ["x" * 60_000]]).encode())
    goal = max(made.counts)
    for _ in range(600):
        publisher.send(payload)
        goal += 1
        _until(partial(made.have, goal))
    publisher.socket.close()


def _settle(made: Readers) -> None:
    """Wait until nothing has come for a while."""
    before = -1
    while before != (before := sum(made.counts)):
        time.sleep(0.5)


def stalled(server: Server, seconds: float, rounds: int) -> tuple[float, float]:
    """p99 of 90 clients, while ten others read, and while they do not: medians of rounds in turn."""
    reading, not_reading = [], []
    with readers(server.port, 100) as made:
        p99_us(server, made, seconds / 2)  # warm
        for _ in range(rounds):
            _fill(server, made)
            _settle(made)
            reading.append(p99_us(server, made, seconds))
            for index in range(10):
                made.stall(index)
            _fill(server, made)
            _settle(made)
            not_reading.append(p99_us(server, made, seconds))
            for index in range(10):
                made.read_again(index)
            _settle(made)
            made.counts = [0] * 100
    return statistics.median(reading), statistics.median(not_reading)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wamp", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-crossbar", action="store_true")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.serve:
        serve(arguments.serve)
    with ExitStack() as stack:
        port, other = _free_port(), _free_port()
        command = [sys.executable, "-m", "benchmarks.wamp", "--serve", str(port)]
        servers = [Server("uStreamer", command, port)]
        stack.callback(servers[0].close)
        if not arguments.without_crossbar:
            servers.append(Server("Crossbar", crossbar(crossbar_python(), other), other))
            stack.callback(servers[1].close)
        print("CPU time of the server per delivered event, us")
        for subscribers in SUBSCRIBERS:
            runs: dict[str, list[float]] = {each.name: [] for each in servers}
            for _ in range(arguments.repeats):
                for each in servers:
                    runs[each.name].append(per_delivery_us(each, subscribers, arguments.seconds))
            medians = {name: statistics.median(values) for name, values in runs.items()}
            shown = "  ".join(f"{name} {value:8.2f}" for name, value in medians.items())
            times = f"  {medians['Crossbar'] / medians['uStreamer']:5.1f} times" if len(medians) > 1 else ""
            print(f"{subscribers:4d} subscribers  {shown}{times}", flush=True)
        all_read, ten_do_not = stalled(servers[0], arguments.seconds, arguments.repeats)
        print(
            f"p99 of 90 clients at 50 Hz: {all_read:.0f} us while all read, {ten_do_not:.0f} us while ten do not: "
            f"{ten_do_not / all_read:.2f} times"
        )
    return 0


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main())
