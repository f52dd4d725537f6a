# SPDX-License-Identifier: Apache-2.0
"""The cases. A module is a chapter of the report; its functions with `@case` are its cases."""

from importlib import import_module
from typing import Final

CHAPTERS: Final = (
    "subscribing",
    "expiring",
    "listing",
    "changes",
    "remote_topics",
    "version_4",
    "lifecycle",
    "basics",
    "zenoh_mapping",
    "wamp",
    "forwarding",
    "throttling",
    "outages",
    "resetting",
    "restarting",
)
"""In the order of the report. Cases that run alone run in this order, too: a restart is the last."""


def load_cases() -> None:
    """Import all chapters, which registers their cases."""
    for chapter in CHAPTERS:
        import_module(f"uprotocol_tck.cases.{chapter}")
