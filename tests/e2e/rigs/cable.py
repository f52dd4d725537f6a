# SPDX-License-Identifier: Apache-2.0
"""A cable between two network namespaces that can be cut: packets are dropped, and no kernel acknowledges them.

Works without root where a user may create namespaces. `in_own_namespace` starts a program in its own namespace, and
that program creates a `Cable` to a second one. `unsupported_reason` names the obstacle (no iproute2, or a container
without the right).
"""

import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

NEAR_ADDRESS: Final = "192.0.2.1"
"""Near end of the cable."""
FAR_ADDRESS: Final = "192.0.2.2"
_UNUSED_MAC: Final = (
    "02:00:00:00:00:01"  # no interface has this link-layer address: the receiver of such a frame drops it
)
_UNSHARE: Final = ("unshare", "--user", "--map-root-user", "--net")
_DEADLINE_S: Final = 30.0


def in_own_namespace(module_name: str, *arguments: str) -> list[str]:
    """Command that runs a Python module as root of its own network namespace."""
    return [*_UNSHARE, sys.executable, "-m", module_name, *arguments]


def unsupported_reason() -> str:
    """Reason why this machine has no cable; empty if it has one."""
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
    """Two ends: the near one in this namespace, the far one in another; `far_prefix` starts a command there."""

    def __init__(self) -> None:
        # The process runs while its stdin is open, so that it ends with this process.
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
        """Drop every packet in both directions from now on; both links still look up.

        Uses a wrong link-layer address of the other host. This needs no kernel module (few kernels have netem).
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
    """Limit TCP buffers on loopback to 64 kB, so that a stopped receiver is noticed. Needs an own namespace."""
    run_system_command("ip", "link", "set", "lo", "up")
    for name in ("tcp_rmem", "tcp_wmem"):
        Path(f"/proc/sys/net/ipv4/{name}").write_text("4096 16384 65536", encoding="ascii")


def run_system_command(*command: str) -> None:
    """Run a system command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
