# SPDX-License-Identifier: Apache-2.0
"""R17: Reset and other privileged calls, from callers and networks that may not make them, at a running streamer."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import USUBSCRIPTION, ZenohEntity
from tests.e2e.rigs.vehicle import running_vehicle
from tests.e2e.rigs.wire import Attributes, Uri

RESET: Final = 9
USUBSCRIPTION_4: Final = USUBSCRIPTION._replace(version=4)
RESET_4: Final = 6
TOPICS: Final = 5


def _request(source: Uri, method: Uri) -> Attributes:
    return Attributes(wire.new_id(), wire.REQUEST, source, method, priority=wire.CS4, ttl=20_000)


class Caller:
    """An entity at one network that makes calls under any source address."""

    def __init__(self, entity: ZenohEntity) -> None:
        self._entity = entity
        self.codes: list[int | None] = []

    def call(self, source: Uri, method: Uri, payload: bytes = b"") -> None:
        made = _request(source, method)
        answer = self._entity.wait_response(self._entity.send_message(made, payload))
        self.codes.append(answer.head.commstatus)


def _attacks(app: Caller, fleet: Caller, victim: Uri, topic: Uri) -> list[Callable[[], None]]:
    """Each is one call that must be denied."""
    reset, reset_4 = USUBSCRIPTION.at(RESET), USUBSCRIPTION_4.at(RESET_4)
    for_another = wire.subscription_request(topic) + wire.field(2, wire.subscriber_info(victim))
    return [
        lambda: app.call(Uri("hpc.vin1", 0xBAD, 1), reset),  # an application
        lambda: app.call(Uri("hpc.vin1", 0x10000, 3), reset),  # type 0, with an instance
        lambda: app.call(Uri("hpc.vin1", 0xBAD, 1), reset_4),
        lambda: app.call(Uri("hpc.vin1", 0, 3), reset),  # our own uSubscription
        lambda: app.call(Uri("cloud", 0, 3), reset),  # the right caller, at the wrong network
        lambda: app.call(Uri("chassis", 0, 3), reset),
        lambda: app.call(Uri("nowhere", 0, 3), reset),
        lambda: fleet.call(Uri("cloud", 0xBAD, 1), reset),
        lambda: fleet.call(Uri("hpc.vin1", 0, 3), reset),
        lambda: fleet.call(Uri("chassis", 0, 4), reset_4),
        lambda: app.call(Uri("hpc.vin1", 0xBAD, 1), USUBSCRIPTION.at(wire.SUBSCRIBE), for_another),
        lambda: fleet.call(victim, USUBSCRIPTION.at(wire.UNSUBSCRIBE), wire.topic_request(topic)),
    ]


def _contents(app: ZenohEntity) -> list[wire.SubscriptionEntry]:
    answer = app.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIPTIONS), b"")
    return sorted(wire.subscriptions_in(answer.payload))


def _hash(directory: Path) -> str:
    return hashlib.sha256((directory / "state/usubscription/data.mdb").read_bytes()).hexdigest()


def test_privileged_calls_are_denied_to_all_but_the_right_caller(tmp_path: Path, trials: int) -> None:
    with (
        running_vehicle(tmp_path) as vehicle,
        ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as app,
        ZenohEntity(vehicle.ports.cloud, "cloud") as fleet,
    ):
        topics = [vehicle.unused_topic() for _ in range(TOPICS)]
        for each in topics:
            app.subscribe(each)
        before, stored = _contents(app), _hash(tmp_path)
        assert len(before) == TOPICS
        near, far = Caller(app), Caller(fleet)
        attacks = _attacks(near, far, app.address, topics[0])
        for number in range(trials):
            attacks[number % len(attacks)]()
        codes = near.codes + far.codes
        denied = sum(code == wire.PERMISSION_DENIED for code in codes)
        unchanged = _contents(app) == before and _hash(tmp_path) == stored
        print(f"calls={len(codes)} kinds={len(attacks)} not_denied={len(codes) - denied}")

        # The right caller, which is the control. Its message is then replayed, from its network and from another.
        reset = _request(Uri("cloud", 0, 3), USUBSCRIPTION.at(RESET))
        assert fleet.wait_response(fleet.send_message(reset)).head.commstatus in {None, wire.OK}
        allowed = int(_contents(app) == [])
        app.subscribe(topics[0])
        app.wait_response(app.send_message(reset))
        after_foreign_replay = len(_contents(app))
        fleet.send_message(reset)
        fleet.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(topics[0]))
        after_own_replay = len(_contents(app))
    print(f"store_changed={int(not unchanged)} allowed={allowed}")
    print(f"replayed_elsewhere={1 - after_foreign_replay} replayed_at_home={1 - after_own_replay}")
