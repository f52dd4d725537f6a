# SPDX-License-Identifier: Apache-2.0
"""WAMP servers as processes: the streamer and Crossbar."""

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from benchmarks.traffic.wamp_clients import TICKET, WampClient

REPO: Final = Path(__file__).resolve().parents[2]
CROSSBAR: Final = REPO / "build" / "crossbar"
_START_S: Final = 60.0


class WampServerProcess:
    """A server process, and the CPU time of it and its children."""

    def __init__(self, name: str, command: list[str], port: int) -> None:
        self.name = name
        self.port = port
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=REPO
        )
        end = time.monotonic() + _START_S
        while True:
            try:
                WampClient(port).socket.close()
                return
            except (OSError, RuntimeError):
                if self._process.poll() is not None or time.monotonic() > end:
                    self._end()
                    assert self._process.stderr is not None
                    stderr_text = self._process.stderr.read()[-2000:]
                    self._process.stderr.close()
                    raise RuntimeError(f"{name} did not start: {stderr_text}") from None
                time.sleep(0.2)

    @property
    def pid(self) -> int:
        return self._process.pid

    def rss(self) -> int:
        """Bytes of memory that the server's own process has."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * resource.getpagesize()

    def cpu_ns(self) -> int:
        return sum(_cpu_ns(pid) for pid in process_tree(self._process.pid))

    def close(self) -> None:
        self._end()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _end(self) -> None:
        process_ids = process_tree(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        for pid in process_ids:
            if Path(f"/proc/{pid}").exists() and pid != self._process.pid:
                subprocess.run(["kill", str(pid)], check=False)  # noqa: S607  # one that outlived its parent


def process_tree(pid: int) -> list[int]:
    """A process and its descendants; the process is the first."""
    found = [pid]
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text(encoding="ascii").split() if children.exists() else ():
        found += process_tree(int(child))
    return found


def _cpu_ns(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks)


def serve_wamp(port: int) -> None:
    """The WAMP router of the streamer, until the process ends."""
    from ustreamer_wamp.config import WampConfig
    from ustreamer_wamp.router import WampRouter
    from ustreamer_wamp.users import User

    from ustreamer.host.runtime.clock import SYSTEM_CLOCK

    publisher = User(authid="p", ticket=TICKET, publish=("",))
    url = f"ws://127.0.0.1:{port}/ws"
    # A stopped client answers no ping and would be disconnected after 40 s.
    config = WampConfig(listen=url, anonymous=True, users=(publisher,), ping_interval_s=3600)
    WampRouter(config, SYSTEM_CLOCK).server.open()
    threading.Event().wait()


def own_command(port: int) -> list[str]:
    """Command for the WAMP router of the streamer."""
    return [sys.executable, "-m", "benchmarks.wamp", "--serve", str(port)]


def crossbar_command(python: Path, port: int) -> list[str]:
    """Command for Crossbar with one realm without restrictions."""
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
    """The interpreter of an environment with Crossbar; created if missing, which takes minutes and 350 MB."""
    python = CROSSBAR / "bin" / "python"
    if not (CROSSBAR / "bin" / "crossbar").exists():
        print(f"installing crossbar into {CROSSBAR}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(CROSSBAR)], check=True)
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install", "crossbar>=26,<27"]
        subprocess.run(pip, check=True)
    return python


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
