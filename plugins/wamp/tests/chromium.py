# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, driven by its own debugging protocol."""

import itertools
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DEADLINE_S = 30.0

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="this is about browsers, and there is no chromium (Debian: apt install chromium)",
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
