# SPDX-License-Identifier: Apache-2.0
"""A streamer whose clock steps: ids return with the clock, and subscriptions end in time and not before.

The clocks of the process are stepped; tests/core/delivery/test_expiry.py and tests/uprotocol/test_uuid.py have random
steps.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import USUBSCRIPTION, Metronome, ZenohEntity, eventually
from tests.e2e.rigs.stepped_clock import SteppedClockProcess, time_namespace
from tests.e2e.rigs.vehicle import Vehicle, running_vehicle
from tests.e2e.rigs.wire import Uri
from ustreamer.core.delivery.expiry import STEP_GRACE_NS

TO_2040_S: Final = 14 * 365 * 86_400
HOUR_S: Final = 3_600
GRACE_S: Final = STEP_GRACE_NS // 1_000_000_000


class Scene(NamedTuple):
    vehicle: Vehicle
    process: SteppedClockProcess
    app: ZenohEntity

    def assert_new_id_is_ahead(self, topic: Uri, by_s: int) -> None:
        """Check the id of a new event: its time is between send and arrival plus `by_s`, or at most a second off."""
        before = len(self.app.events(topic))
        sent_s = time.time()
        self.vehicle.send_event(topic)
        made_s = self.app.wait_events(topic, before + 1)[-1].head.id.time_ms / 1_000
        assert sent_s - 1 < made_s - by_s < time.time() + 1

    def last_id_is_ahead(self, topic: Uri) -> bool:
        events = self.app.events(topic)
        return bool(events) and events[-1].head.id.time_ms / 1_000 > time.time() + HOUR_S // 2

    def subscribe(self, topic: Uri, lasts_s: float) -> int:
        """Subscribe; returns the end in ms since the epoch."""
        expire_ms = round((time.time() + lasts_s) * 1_000)
        wanted = wire.subscription_request(topic, expire_ms=expire_ms)
        answer = self.app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wanted)
        assert wire.SubscriptionResponse.decode(answer.payload).state == wire.SUBSCRIBED
        return expire_ms

    def is_subscribed(self, topic: Uri) -> bool:
        answer = self.app.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(topic))
        assert answer.head.commstatus in {None, wire.OK}, answer.status
        return bool(wire.message_in(wire.fields(answer.payload), 1))

    def is_forwarded(self, topic: Uri, subscribed: Uri) -> bool:
        """Whether an event arrives before the next one of a topic that is subscribed."""
        before, before_next = (len(self.app.events(each)) for each in (topic, subscribed))
        self.vehicle.send_event(topic)
        self.vehicle.send_event(subscribed)
        self.app.wait_events(subscribed, before_next + 1)
        return len(self.app.events(topic)) > before

    def wait_clock_step(self) -> None:
        """The streamer checks its clocks once a second."""
        before = self._steps()
        eventually(lambda: self._steps() > before, True)

    def _steps(self) -> int:
        return sum(record["event"] == "clock.stepped" for record in self.process.log_records)


@contextmanager
def stepped_vehicle(directory: Path, namespace: tuple[str, ...] = ()) -> Iterator[Scene]:
    launch = partial(SteppedClockProcess, namespace=namespace)
    with (
        running_vehicle(directory, launch=launch) as vehicle,
        ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as app,
    ):
        assert isinstance(vehicle.process, SteppedClockProcess)
        yield Scene(vehicle, vehicle.process, app)


def test_ids_of_a_glitch_to_2040_end_with_the_glitch(tmp_path: Path) -> None:
    with stepped_vehicle(tmp_path) as scene:
        topic = scene.vehicle.unused_topic()
        scene.app.subscribe(topic)
        scene.assert_new_id_is_ahead(topic, 0)
        scene.process.set_offsets(wall_s=TO_2040_S)
        scene.assert_new_id_is_ahead(topic, TO_2040_S)  # the step is real
        scene.process.set_offsets()
        scene.assert_new_id_is_ahead(topic, 0)


def test_ids_stay_unique_and_messages_in_order_while_the_clock_steps(tmp_path: Path) -> None:
    with stepped_vehicle(tmp_path) as scene:
        topic = scene.vehicle.unused_topic()
        scene.app.subscribe(topic)
        with Metronome(500, lambda number: scene.vehicle.send_event(topic, b"%d" % number)) as metronome:
            for number in range(1, 9):
                scene.process.set_offsets(wall_s=HOUR_S if number % 2 else 0)
                eventually(lambda: scene.last_id_is_ahead(topic), bool(number % 2))
        # All: at the stop, an event for an application that has left is one that was not sent.
        events = scene.app.wait_events(topic, metronome.beats)
        numbers = [int(event.payload) for event in events]
        assert numbers == list(range(len(numbers)))
        ids = [event.head.id for event in events]
        assert len(set(ids)) == len(ids)
        falls = sum(later < earlier for earlier, later in pairwise(ids))
        print(f"uuid_unique=yes uuid_falls={falls} steps_back=4 of {len(ids)} ids")
        assert falls == 4  # one for each step back


@pytest.mark.parametrize("in_namespace", [False, True], ids=["", "time namespace"])
@pytest.mark.parametrize("step_s", [HOUR_S, TO_2040_S, -HOUR_S], ids=["an hour", "to 2040", "back"])
def test_a_subscription_survives_a_glitch_and_ends_within_a_second_of_its_time(
    tmp_path: Path, step_s: int, in_namespace: bool
) -> None:
    namespace = time_namespace() if in_namespace else ()
    if in_namespace and not namespace:
        pytest.skip("needs `unshare --time`")
    with stepped_vehicle(tmp_path, namespace) as scene:
        topic = scene.vehicle.unused_topic()
        end_s = scene.subscribe(topic, 5) / 1_000
        scene.process.set_offsets(wall_s=step_s)
        scene.wait_clock_step()
        assert scene.is_subscribed(topic) or time.time() > end_s
        scene.process.set_offsets()
        scene.wait_clock_step()
        found_s = end_s  # the start of the last call that found it
        asked_s = time.time()
        while scene.is_subscribed(topic):
            found_s = asked_s
            time.sleep(0.05)
            asked_s = time.time()
        error_s = found_s - end_s
        print(f"wrongly_expired=0 never_expired=0 sub_expiry_error_s={max(error_s, 0):.2f}")
        assert time.time() > end_s
        assert error_s <= 1


def test_a_step_that_stays_ends_a_subscription_after_the_grace_period(tmp_path: Path) -> None:
    with stepped_vehicle(tmp_path) as scene:
        topic, other = scene.vehicle.unused_topic(), scene.vehicle.unused_topic()
        scene.subscribe(topic, HOUR_S // 2)
        scene.subscribe(other, 2 * HOUR_S)
        scene.process.set_offsets(wall_s=HOUR_S)
        scene.wait_clock_step()
        assert scene.is_subscribed(topic)  # and uSubscription has seen the step
        assert scene.is_forwarded(topic, other)
        scene.process.set_offsets(wall_s=HOUR_S + GRACE_S, monotonic_s=GRACE_S)
        # Not by a call: the streamer now takes the ids of the application for an hour old.
        eventually(lambda: scene.is_forwarded(topic, other), False)
        # Next to the application: right after a step of the monotonic clock, its end would look like a silent link's.
        scene.process.stop()
