# SPDX-License-Identifier: Apache-2.0
"""Other users of the machine: the admin socket, the state directory, metrics and health."""

import os
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from ustreamer.host.admin.server import SOCKET
from ustreamer.host.attack.attack import Attack, Need
from ustreamer.host.attack.scene import Scene
from ustreamer.host.runtime.clock import SYSTEM_CLOCK

FAMILY: Final = "local access"
_OTHERS: Final = 0o007
_TIMEOUT_S: Final = 5.0
_RECOVERY_NS: Final = 5_000_000_000
_CONNECT: Final = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as s:
    s.connect(sys.argv[1])
"""


def admin_socket(scene: Scene) -> str:
    """As the user with the id 65534, if this process may become it. Else by the mode of the socket."""
    path = scene.target.state_dir / SOCKET
    if os.geteuid() == 0:
        done = subprocess.run(
            [sys.executable, "-S", "-c", _CONNECT, str(path)], capture_output=True, timeout=30, check=False
        )
        return "" if done.returncode else "another user opened the admin socket"
    return "another user may open the admin socket" if path.stat().st_mode & 0o077 else ""


def state_files(scene: Scene) -> str:
    """Files with payloads, tokens or subscriptions that every user may read."""
    root = scene.target.state_dir
    if not root.stat().st_mode & stat.S_IXOTH:
        return ""
    open_files = [
        each
        for each in root.rglob("*")
        if each.is_file() and each.stat().st_mode & _OTHERS and _reachable(each.parent, root)
    ]
    return f"every user may read {open_files[0].name}" if open_files else ""


def _reachable(directory: Path, root: Path) -> bool:
    return directory == root or (
        bool(directory.stat().st_mode & stat.S_IXOTH) and _reachable(directory.parent, root)
    )


def admin_garbage(scene: Scene) -> str:
    """The admin socket is for one user; a confused program of that user must not stop the streamer."""
    for number in scene.paced(20):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(0.2)
            client.connect(str(scene.target.state_dir / SOCKET))
            client.sendall((b"{}\n", b"\xff\n", b'{"type":"reload"}\n', b"[" * 10_000 + b"\n")[number % 4])
            client.recv(1_000)
    return scene.service_denied()


def _get(scene: Scene, path: str) -> bytes:
    assert scene.target.observe is not None  # by the needs of the attack
    with socket.create_connection(scene.target.observe, _TIMEOUT_S) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return client.recv(1_000)


def _health_refused(scene: Scene) -> str:
    try:
        answer = _get(scene, "/healthz")
    except OSError as error:
        return f"health is not served: {error}"
    return "" if b" 200 " in answer[:20] else f"health is not served: {answer[:40]!r}"


def metrics_flood(scene: Scene) -> str:
    for _ in scene.paced(100):
        with suppress(OSError):
            _get(scene, "/metrics")
    return _health_refused(scene)


def metrics_silent(scene: Scene) -> str:
    """Connections with half a request. They are closed after 2 s, so health comes back."""
    assert scene.target.observe is not None  # by the needs of the attack
    with ExitStack() as stack:
        for _ in range(64):
            with suppress(OSError):
                client = stack.enter_context(socket.create_connection(scene.target.observe, 0.5))
                client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        scene.hold()
        deadline_ns = SYSTEM_CLOCK.monotonic_ns() + _RECOVERY_NS
        while effect := _health_refused(scene):
            if SYSTEM_CLOCK.monotonic_ns() > deadline_ns:
                return effect
            scene.hold()
    return ""


ATTACKS: Final = (
    Attack("admin-other-user", FAMILY, "open the admin socket as another user", (), admin_socket),
    Attack("admin-garbage", FAMILY, "send garbage to the admin socket", (), admin_garbage),
    Attack("state-files", FAMILY, "read the files of the state directory", (), state_files),
    Attack("metrics-flood", FAMILY, "request the metrics without end", (Need.OBSERVE,), metrics_flood),
    Attack("metrics-silent", FAMILY, "hold the connections of the metrics", (Need.OBSERVE,), metrics_silent),
)
