# SPDX-License-Identifier: Apache-2.0
"""The distributions that the demo needs and that are not installed."""

from importlib.util import find_spec
from typing import Final

from ustreamer.host.runtime.plugins import installed_plugins

_PLUGINS: Final = ("payloads", "recorder", "throttle", "usubscription")


def missing_packages(*, web: bool, metrics: bool = False) -> list[str]:
    """The names of their wheels, with extras; `web`: with its page; `metrics`: with its metrics."""
    missing = [] if find_spec("zenoh") is not None else ["ustreamer[zenoh,cli]"]
    if metrics and find_spec("prometheus_client") is None:
        missing.append("ustreamer[observe]")
    installed = installed_plugins()
    wanted = (*_PLUGINS, "wamp") if web else _PLUGINS
    return [*missing, *(f"ustreamer-{name}" for name in wanted if name not in installed)]
