# SPDX-License-Identifier: Apache-2.0
"""The Rust reference streamer as another forwarder, if REFERENCE_STREAMER names its binary.

The repository contains nothing of it. `configurable-streamer` of eclipse-uprotocol/up-streamer-rust has one Zenoh
session and needs an MQTT broker. The binary is therefore a main function over its crate `up-streamer` that opens two
Zenoh sessions, adds a route in each direction, prints READY and runs until SIGTERM:

    REFERENCE_STREAMER AUTHORITY ZENOH_CONFIG OTHER_AUTHORITY OTHER_ZENOH_CONFIG SUBSCRIPTIONS

ZENOH_CONFIG is a configuration file of Zenoh, SUBSCRIPTIONS a file of its crate `usubscription-static-file`.
"""

import json
import os
from pathlib import Path
from typing import Final

from benchmarks.traffic import sockets, wire
from benchmarks.traffic.models import TrafficModel

VARIABLE: Final = "REFERENCE_STREAMER"


def reference_binary() -> str | None:
    """The binary, or None if the environment names none."""
    return os.environ.get(VARIABLE) or None


def reference_command(directory: Path, model: TrafficModel, port: int, other_port: int) -> list[str]:
    """Write the configuration into a directory. Returns the command. Raises KeyError if no binary is named."""
    directory.mkdir()
    files = {
        "zenoh.json5": zenoh_config(port),
        "other.json5": zenoh_config(other_port),
        "subscriptions.json": subscriptions(model),
    }
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    one, other, subscribed = (str(directory / name) for name in files)
    return [os.environ[VARIABLE], wire.STREAMER, one, wire.CLOUD, other, subscribed]


def zenoh_config(port: int) -> str:
    """A listening peer."""
    return json.dumps(
        {
            "mode": "peer",
            "listen": {"endpoints": [f"tcp/{sockets.LOOPBACK}:{port}"]},
            "scouting": {"multicast": {"enabled": False}},
        }
    )


def subscriptions(model: TrafficModel) -> str:
    """Every topic with one subscriber in the other network."""
    subscriber = _uri(wire.REMOTE_SUBSCRIBER)
    return json.dumps({_uri(model.address(topic)): [subscriber] for topic in range(model.topics)})


def _uri(address: wire.Address) -> str:
    return f"//{address.authority}/{address.service:X}/{address.version:X}/{address.resource:X}"
