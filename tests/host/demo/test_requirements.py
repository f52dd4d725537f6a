# SPDX-License-Identifier: Apache-2.0
"""The packages that the demo needs: those that are not installed are arguments of pip."""

import sys

import pytest

from ustreamer.host.demo import requirements
from ustreamer.host.demo.requirements import missing_packages
from ustreamer.host.runtime.plugins import installed_plugins


def test_nothing_is_missing_in_a_full_installation() -> None:
    assert missing_packages(web=True) == []


def test_a_missing_plugin_is_named_if_the_demo_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = installed_plugins()
    left = {name: entry for name, entry in installed.items() if name not in {"wamp", "throttle"}}
    monkeypatch.setattr(requirements, "installed_plugins", lambda: left)
    assert missing_packages(web=False) == ["ustreamer-throttle"]
    assert missing_packages(web=True) == ["ustreamer-throttle", "ustreamer-wamp"]


def test_missing_metrics_are_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # as if it were not installed
    assert missing_packages(web=False) == []
    assert missing_packages(web=False, metrics=True) == ["ustreamer[observe]"]


def test_a_missing_zenoh_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zenoh", None)  # as if it were not installed
    assert missing_packages(web=False) == ["ustreamer[zenoh,cli]"]
