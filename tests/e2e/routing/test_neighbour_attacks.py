# SPDX-License-Identifier: Apache-2.0
"""Attacks of a neighbour network on a streamer with configs/vehicle.toml, over real Zenoh sessions.

Each test is an attack that a version before has let succeed: SECURITY.md lists them.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.docs.test_configs import elsewhere
from tests.e2e.rigs import wire
from tests.e2e.rigs.certificates import CONFIGS
from tests.e2e.rigs.entities import USUBSCRIPTION, ZenohEntity, ZenohSample, eventually
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess, run_command, statistics
from tests.e2e.rigs.wire import Attributes, Uri

RESET_V3: Final = USUBSCRIPTION.at(9)
RESET_V4: Final = Uri("hpc.vin1", 0, 4).at(6)
TOPIC: Final = Uri("chassis", 0x1234, 1).at(0x8001)
NO_SERVICE: Final = Uri("chassis", 0x3FFF, 1).at(1)
RESOURCE_EXHAUSTED: Final = 8
SHARE: Final = 10
LETTERS: Final = 20


class ShippedVehicle:
    """A streamer with configs/vehicle.toml on free ports."""

    def __init__(self, directory: Path, **replaced: str) -> None:
        self.backbone, self.cloud = tcp_ports(2)
        text = (CONFIGS / "vehicle.toml").read_text(encoding="utf-8")
        for before, after in {"7447": str(self.backbone), "7448": str(self.cloud), **replaced}.items():
            assert before in text
            text = text.replace(before, after)
        self.state = directory / "state"
        self.config = directory / "vehicle.toml"
        # The ports of Zenoh are known; `elsewhere` moves the one of SOME/IP.
        moved = elsewhere(text.replace("tcp/", "TCP/"), self.state).replace("TCP/", "tcp/")
        self.config.write_text(moved, encoding="utf-8")

    def run(self) -> StreamerProcess:
        return StreamerProcess(self.config)

    def subscriptions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            run_command("subscriptions", "ls", self.config, "--json").stdout
        )
        return found

    def counter(self, name: str) -> int:
        """A counter of the endpoint `cloud`."""
        found: int = statistics(self.state)["endpoints"]["cloud"][name]
        return found


def send_as(node: ZenohEntity, source: Uri, method: Uri, payload: bytes = b"") -> wire.Id:
    """Send a Request with any address as the source."""
    head = Attributes(
        wire.new_id(),
        wire.REQUEST,
        source,
        method,
        priority=wire.CS4,
        ttl=5000,
        payload_format=wire.PROTOBUF,
    )
    return node.send_message(head, payload)


def call_as(node: ZenohEntity, source: Uri, method: Uri, payload: bytes = b"") -> ZenohSample:
    """Send it, and wait for the answer: the node receives all messages of its network."""
    return node.wait_response(send_as(node, source, method, payload))


def subscribe_as(node: ZenohEntity, entity: int, topic: Uri = TOPIC) -> int | None:
    """Subscribe a topic for any entity of the node's authority. Returns the status of the answer."""
    source = Uri(node.address.authority, entity, 1)
    payload = wire.subscription_request(topic)
    return call_as(node, source, USUBSCRIPTION.at(wire.SUBSCRIBE), payload).head.commstatus


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShippedVehicle]:
    vehicle = ShippedVehicle(tmp_path_factory.mktemp("shipped"))
    with vehicle.run():
        yield vehicle


@pytest.mark.parametrize("reset", [RESET_V3, RESET_V4])
def test_a_forged_reset_of_a_neighbour_ends_no_subscription(shipped: ShippedVehicle, reset: Uri) -> None:
    """As a uSubscription of the neighbour's own network, and as that of the vehicle."""
    with ZenohEntity(shipped.backbone, "hpc.vin1") as app, ZenohEntity(shipped.cloud, "cloud") as neighbour:
        app.subscribe(TOPIC)
        spoofed = shipped.counter("refused_spoofed")
        send_as(neighbour, Uri("hpc.vin1", 0, reset.version), reset)
        answer = call_as(neighbour, Uri("cloud", 0, reset.version), reset)
        assert answer.head.commstatus == wire.PERMISSION_DENIED
        assert shipped.counter("refused_spoofed") == spoofed + 1
        assert str(app.address) in {
            each["subscriber"].removeprefix("up:") for each in shipped.subscriptions()
        }


def test_forged_subscriptions_of_a_neighbour_are_limited_and_removed_after_a_restart(tmp_path: Path) -> None:
    usubscription = "[plugins.usubscription]"
    limited = f"{usubscription}\nmax_subscriptions_per_authority = {SHARE}"
    vehicle = ShippedVehicle(tmp_path, **{usubscription: limited})
    forged = range(0x100, 0x100 + SHARE + 5)
    with vehicle.run(), ZenohEntity(vehicle.cloud, "cloud") as neighbour:
        granted = [subscribe_as(neighbour, entity) for entity in forged]
        assert granted == [None] * SHARE + [RESOURCE_EXHAUSTED] * 5
    with vehicle.run():
        with (
            ZenohEntity(vehicle.backbone, "hpc.vin1") as app,
            ZenohEntity(vehicle.cloud, "cloud") as neighbour,
        ):
            assert subscribe_as(neighbour, forged[-1]) == RESOURCE_EXHAUSTED
            app.subscribe(TOPIC)
        assert len(vehicle.subscriptions()) == SHARE + 1
        removed = run_command("subscriptions", "rm", vehicle.config, "--subscriber", "//cloud/FFFFFFFF/FF/0")
        assert removed.returncode == 0, removed.stderr
        [left] = vehicle.subscriptions()
        assert left["subscriber"].removeprefix("up:") == str(app.address)


def test_undeliverable_messages_of_a_neighbour_displace_no_dead_letter_of_others(tmp_path: Path) -> None:
    letters = f"[dead_letters]\nmessages = {LETTERS}\n\n[plugins.usubscription]"
    vehicle = ShippedVehicle(
        tmp_path,
        **{
            "[plugins.usubscription]": letters,
            # The cloud may call the missing service, too: an access rule would deny it without a dead letter.
            'sink = "//chassis/3001/1/1"': 'sink = "//chassis/3FFF/1/1"',
        },
    )
    with vehicle.run():
        with (
            ZenohEntity(vehicle.backbone, "hpc.vin1") as app,
            ZenohEntity(vehicle.cloud, "cloud") as neighbour,
        ):
            for _ in range(3):
                app.call(NO_SERVICE)
            for _ in range(3 * LETTERS):
                neighbour.call(NO_SERVICE)

        def stored() -> dict[str, int]:
            found: dict[str, int] = statistics(vehicle.state)["dead_letters"]
            return {name: found[name] for name in ("persisted", "stored")}

        eventually(stored, {"persisted": 3 + 3 * LETTERS, "stored": LETTERS})
        listed = json.loads(run_command("dead-letters", "ls", vehicle.config, "--json").stdout)
        sources = Counter(each["source"].removeprefix("up:") for each in listed)
        assert sources == {str(app.address): 3, str(neighbour.address): LETTERS - 3}
