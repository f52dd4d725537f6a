# SPDX-License-Identifier: Apache-2.0
"""`vsomeip_peer.cpp` as a peer of the streamer: compiled against the headers in VSOMEIP_HOME, driven by its stdin."""

import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.e2e.rigs.entities import DEADLINE_S
from tests.e2e.someip.vsomeip_samples import Installation, VsomeipProcess, vsomeip_json

SOURCE: Final = Path(__file__).with_name("vsomeip_peer.cpp")
_COMPILE_S: Final = 300.0
_AGAIN_S: Final = 0.2


def build_peer(found: Installation, directory: Path) -> Path | str:
    """The compiled program, or the reason for its absence."""
    compiler = shutil.which("g++")
    if compiler is None or not (found.home / "include/vsomeip/vsomeip.hpp").exists():
        return f"no g++, or no headers in {found.home / 'include'}"
    program = directory / "vsomeip_peer"
    paths = [f"-I{found.home}/include", f"-L{found.home}/lib"]
    command = [
        compiler,
        "-std=c++17",
        "-O1",
        str(SOURCE),
        "-o",
        str(program),
        *paths,
        "-lvsomeip3",
        "-lpthread",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    assert done.returncode == 0, done.stderr
    return program


def offered_service(
    service: int,
    instance: int,
    port: int,
    *,
    tcp: bool = False,
    multicast: Mapping[int, str] | None = None,
    segmented: Sequence[int] = (),
) -> dict[str, Any]:
    """A service of the JSON. `multicast`: groups whose events go to this address; `segmented`: methods and events."""
    groups = [
        {
            "eventgroup": f"{group:#x}",
            "events": [f"{0x8000 | group:#x}"],
            "threshold": "1",
            "multicast": {"address": address, "port": "31900"},
        }
        for group, address in (multicast or {}).items()
    ]
    return {
        "service": f"{service:#x}",
        "instance": f"{instance:#x}",
        "unreliable": str(port),
        **({"reliable": {"port": str(port), "enable-magic-cookies": "false"}} if tcp else {}),
        **({"eventgroups": groups} if groups else {}),
        **({"someip-tp": {"service-to-client": [f"{each:#x}" for each in segmented]}} if segmented else {}),
    }


class VsomeipPeer(VsomeipProcess):
    """The program with its commands. A line of its output that is no log line begins with "@" and a time in us."""

    def __init__(
        self,
        found: Installation,
        program: Path,
        directory: Path,
        host: str,
        sd: tuple[str, int],
        services: Sequence[Mapping[str, Any]],
        prefix: tuple[str, ...] = (),
        name: str = "peer",
        **discovery: str,
    ) -> None:
        configuration = vsomeip_json(name, host, *sd, is_server=False) | {"services": services}
        configuration["service-discovery"] |= discovery
        super().__init__(found, [str(program)], directory, configuration, prefix)
        self.wait_line("registered")

    def wait_line(self, text: str, count: int = 1) -> int:
        """Wait until `count` lines with this text are printed; the time of the last one in us."""
        pattern = re.compile(rf"@(\d+) {text}\s")
        lines = self.output.wait_count(lambda line: pattern.match(line) is not None, count)
        match = pattern.match(lines[count - 1])
        assert match
        return int(match[1])

    def repeat_until(self, line: str, text: str) -> int:
        """Send a command again and again until the output has `text`; the time of that in us."""
        pattern = re.compile(rf"@(\d+) {text}\s")
        until = time.monotonic() + DEADLINE_S
        while True:
            self.send(line)
            with suppress(AssertionError):
                found = self.output.wait_one(lambda each: pattern.match(each) is not None, _AGAIN_S)
                return int(found[1:].split()[0])
            assert time.monotonic() < until, f"{line}: no {text}"
