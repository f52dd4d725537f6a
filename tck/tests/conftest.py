# SPDX-License-Identifier: Apache-2.0
"""What several tests of the kit need."""

import json
import socket
from collections.abc import Iterator

import pytest
import zenoh


@pytest.fixture
def node() -> Iterator[str]:
    """A node of Zenoh that stands for the network of a subject; its locator."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        locator = f"tcp/127.0.0.1:{free.getsockname()[1]}"
    config = zenoh.Config()
    config.insert_json5("listen/endpoints", json.dumps([locator]))
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config):
        yield locator
