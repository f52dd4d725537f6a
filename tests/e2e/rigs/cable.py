# SPDX-License-Identifier: Apache-2.0
"""A real cable between two network namespaces, which can be cut: packets are dropped, and no kernel acknowledges them.

Needs no root where a user may have namespaces. `alone` starts a program in a namespace of its own, and that program makes a
`Cable` to a second one. Where that is not possible (no iproute2, or a container that forbids it) `obstacle` says why.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

NEAR_ADDRESS: Final = "192.0.2.1"
"""Our end of the cable."""
FAR_ADDRESS: Final = "192.0.2.2"
_UNUSED_MAC: Final = (
    "02:00:00:00:00:01"  # a link-layer address that no interface has: whoever gets such a frame drops it
)
_UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--net")
_DEADLINE_S: Final = 30.0


def in_own_namespace(module_name: str, *arguments: str) -> list[str]:
    """The command that runs a Python module in a network namespace of its own, as its root."""
    return [*_UNSHARE, sys.executable, "-m", module_name, *arguments]


def unsupported_reason() -> str:
    """Why there can be no cable on this machine; empty if there can."""
    for needed in ("unshare", "nsenter", "ip"):
        if shutil.which(needed) is None:
            return f"{needed} is not installed"
    created = subprocess.run(
        [*_UNSHARE, "ip", "link", "add", "near", "type", "veth", "peer", "name", "far"],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    return created.stderr.strip().splitlines()[-1] if created.returncode else ""


class Cable:
    """Two ends, `NEAR` in this namespace and `FAR` in another one, where `there` is put before a command."""

    def __init__(self) -> None:
        # It lives for as long as its input is open, so that nothing is left however this process ends.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout
        self._holder.stdout.readline()
        self.far_namespace = f"/proc/{self._holder.pid}/ns/net"
        self.far_prefix: tuple[str, ...] = ("nsenter", f"--net={self.far_namespace}")
        run_system_command(
            "ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", f"{self._holder.pid}"
        )
        for prefix, name, address in (((), "near", NEAR_ADDRESS), (self.far_prefix, "far", FAR_ADDRESS)):
            run_system_command(*prefix, "ip", "link", "set", "lo", "up")
            run_system_command(*prefix, "ip", "address", "add", f"{address}/24", "dev", name)
            run_system_command(*prefix, "ip", "link", "set", name, "up")

    def cut(self) -> None:
        """From now on every packet, in either direction, goes out and is dropped on the way; both links look up.

        Done by a wrong address of the neighbour, which needs no module of the kernel (netem is in few).
        """
        for prefix, name, other in (((), "near", FAR_ADDRESS), (self.far_prefix, "far", NEAR_ADDRESS)):
            wrong_mac = ("lladdr", _UNUSED_MAC, "nud", "permanent")
            run_system_command(*prefix, "ip", "neighbour", "replace", other, "dev", name, *wrong_mac)

    def heal(self) -> None:
        for prefix, name, other in (((), "near", FAR_ADDRESS), (self.far_prefix, "far", NEAR_ADDRESS)):
            run_system_command(*prefix, "ip", "neighbour", "delete", other, "dev", name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._holder.stdin
        assert self._holder.stdout
        self._holder.stdin.close()
        self._holder.wait(_DEADLINE_S)
        self._holder.stdout.close()


def shrink_tcp_buffers() -> None:
    """In a namespace of one's own: have TCP buffers of 64 kB at most on loopback, so that who stands still is noticed."""
    run_system_command("ip", "link", "set", "lo", "up")
    for name in ("tcp_rmem", "tcp_wmem"):
        Path(f"/proc/sys/net/ipv4/{name}").write_text("4096 16384 65536", encoding="ascii")


def run_system_command(*command: str) -> None:
    """Run a command of the system, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
