# SPDX-License-Identifier: Apache-2.0
"""Routers with real listeners on this machine."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.router import WampRouter

from ustreamer.core.base.clock import Clock

if TYPE_CHECKING:
    from tests.conftest import OPENED
else:
    from plugins.wamp.tests.conftest import OPENED

CLOCK = Clock(time.monotonic_ns, lambda: time.time_ns() // 1_000_000)


@pytest.fixture
def start() -> Iterator[Callable[..., WampRouter]]:
    """Start a router; it is stopped when the test ends."""
    routers: list[WampRouter] = []

    def make(listen: str | list[str] = "ws://127.0.0.1:0/ws", **section: Any) -> WampRouter:
        section = {"anonymous": True, "users": [{"authid": "p", "ticket": "t", "publish": [""]}], **section}
        config = msgspec.convert(
            {"listen": listen, **section}, WampConfig, dec_hook=lambda kind, value: kind(value)
        )
        router = WampRouter(config, CLOCK)
        router.server.open()
        routers.append(router)
        return router

    yield make
    OPENED.close()  # first: a router that stops waits for the goodbyes of its clients
    for router in routers:
        router.server.close()
