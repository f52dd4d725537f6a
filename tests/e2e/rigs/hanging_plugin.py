# SPDX-License-Identifier: Apache-2.0
"""A plugin for a streamer process whose filter hangs the receiving thread for ever, at the payload HANG."""

from pathlib import Path
from typing import Final

HANG: Final = b"hang"
SECTION: Final = "\n[plugins.stuck]\n"
_SOURCE: Final = f"""
from threading import Event
import msgspec
from ustreamer.hooks import hookimpl

class Stuck:
    def admit(self, message, now_ns):
        if message.payload == {HANG!r}:
            Event().wait()

class Plugin:
    class Config(msgspec.Struct, frozen=True): ...
    def __init__(self, config, context): ...
    @hookimpl
    def ustreamer_filters(self, delivery):
        return Stuck()
"""


def install_hanging_plugin(directory: Path) -> None:
    """Make a process with `directory` in its PYTHONPATH find the plugin of SECTION."""
    (directory / "stuck_plugin.py").write_text(_SOURCE, encoding="utf-8")
    info = directory / "stuck-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ustreamer]\nstuck = stuck_plugin:Plugin\n")
