# SPDX-License-Identifier: Apache-2.0
"""The streamer follows a uSubscription of another process: lists, pages, updates during a request, limits, refusals."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.external.list_requests import MAX_PAUSE_NS
from ustreamer_usubscription.external.service import CLIENT, QUIET_LIST_NS, UNANSWERED, ExternalUsubscription
from ustreamer_usubscription.operator_changes import RemovalPattern

from tests.waiting import wait_until
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.links import LinkStates
from ustreamer.core.base.timers import Timers
from ustreamer.core.routing.subscriptions import ServiceOutage
from ustreamer.hooks import PluginContext
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

OWN = "hpc.vin1"
MAX_PAUSE_MS = MAX_PAUSE_NS // 1_000_000
TOPICS = [UUri("chassis", 0x1234, 1, 0x8001 + number) for number in range(4)]
APP = UUri(OWN, 0x10AB, 1, 0)


def listed(topic: UUri, state: int = 2, **attributes: Any) -> pb3.Subscription:
    return pb3.Subscription(
        topic=topic.to_pb(),
        subscriber=pb3.SubscriberInfo(uri=APP.to_pb()),
        status=pb3.SubscriptionStatus(state=state),
        attributes=pb3.SubscribeAttributes(**attributes),
    )


class Rig:
    """The service on a local network, with the other uSubscription played by the test."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.time = ManualClock()
        self.timers, self.lock = Timers(), Lock()
        network = LocalNetwork("self")
        self.bus, self.other = LocalTransport(network, OWN), LocalTransport(network, OWN)
        self.links = LinkStates(lambda _: "backbone")
        context = PluginContext(
            OWN, (OWN, "chassis"), directory, self.time.clock(), self._schedule, links=self.links
        )
        self.directory = InMemoryDirectory()
        self.service = ExternalUsubscription(
            UsubscriptionConfig(external=True, **config), context, self.directory
        )
        self.ids = UuidSource(self.time.clock().wall_ms)
        self.requests: list[UMessage] = []
        self.listed: list[pb3.Subscription] = []
        """The pages so far."""
        self.responses: list[UMessage] = []
        for each in (self.bus, self.other):
            each.open()
        self.other.register_listener(ANY, UUri(OWN, 0, 0xFF, 0xFFFF), self._on_message)
        self.service.start(self.bus)
        self.service.on_endpoints_up()

    def _schedule(self, when_ns: int, action: Callable[[], None]) -> None:
        with self.lock:
            self.timers.schedule(when_ns, action)

    def _on_message(self, message: UMessage) -> None:
        (self.requests if message.attributes.type is UMessageType.REQUEST else self.responses).append(message)

    def wait_request(self, count: int) -> UMessage:
        wait_until(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    def advance(self, ms: int) -> None:
        wait_until(lambda: (self.timers.next_due_ns or 0) > self.time.now_ns)
        self.time.advance(ms=ms)
        with self.lock:
            due = self.timers.pop_due(self.time.now_ns)
        for action in due:
            action()

    def answer(
        self, asked: UMessage, *entries: pb3.Subscription, more: bool = False, has_moved: bool = False
    ) -> None:
        """A page with further `entries`, after the last one of the page before, unless that `has_moved`."""
        offset = pb3.FetchSubscriptionsRequest.FromString(asked.payload).offset
        listed_count = len(self.listed) if offset else 0
        del self.listed[listed_count:]
        self.listed += entries
        if offset < listed_count and not has_moved:
            entries = (self.listed[offset], *entries)
        body = pb3.FetchSubscriptionsResponse(subscriptions=entries, has_more_records=more)
        self.other.send(response(self.ids.next(), asked, body.SerializeToString(), UPayloadFormat.PROTOBUF))

    def update(self, entry: pb3.Subscription) -> None:
        body = pb3.Update(
            topic=entry.topic, subscriber=entry.subscriber, status=entry.status, attributes=entry.attributes
        )
        topic = UUri(OWN, 0, 3, 0x8000)
        self.other.send(publish(self.ids.next(), topic, body.SerializeToString(), UPayloadFormat.PROTOBUF))

    def wait_topics(self, *topics: UUri) -> None:
        wait_until(
            lambda: (
                [bool(self.directory.subscribers(each)) for each in TOPICS]
                == [each in topics for each in TOPICS]
            )
        )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, max_subscriptions=3)
    yield rig
    rig.service.stop()


def test_the_directory_has_an_outage_until_there_is_a_list(rig: Rig) -> None:
    asked = rig.wait_request(1)
    since_ms = rig.time.clock().wall_ms()
    assert rig.directory.outage() == ServiceOutage(UUri(OWN, 0, 3, 3), since_ms, "no answer")
    rig.advance(ms=600)
    rig.wait_request(2)
    assert rig.directory.outage() == ServiceOutage(UUri(OWN, 0, 3, 3), since_ms, "no answer")
    rig.answer(asked, listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])
    wait_until(lambda: rig.directory.outage() is None)
    rig.advance(ms=1_200)  # twice the time of the answer
    rig.wait_request(3)
    rig.advance(ms=1_200)
    wait_until(lambda: rig.directory.outage() is not None)
    outage = rig.directory.outage()
    assert outage is not None
    assert outage.since_ms > since_ms


def test_the_list_is_the_directory(rig: Rig) -> None:
    rig.answer(
        rig.wait_request(1),
        listed(TOPICS[0], sample_period_ms=20),
        listed(TOPICS[1], state=1),
        listed(TOPICS[2], state=0),
    )
    rig.wait_topics(TOPICS[0], TOPICS[1])
    assert rig.directory.subscribers(TOPICS[0])[0].period_ns == 20_000_000
    rig.advance(ms=600)
    rig.answer(rig.wait_request(2), listed(TOPICS[1]))
    rig.wait_topics(TOPICS[1])


def test_a_list_in_pages_counts_as_a_whole(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), listed(TOPICS[0]), more=True)
    second = rig.wait_request(2)
    assert pb3.FetchSubscriptionsRequest.FromString(second.payload).offset == 1
    rig.wait_topics()
    rig.answer(second, listed(TOPICS[1]))
    rig.wait_topics(TOPICS[0], TOPICS[1])


def test_a_change_between_two_pages_ends_no_other_subscription(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), *map(listed, TOPICS[:3]))
    rig.wait_topics(*TOPICS[:3])
    rig.advance(ms=600)
    rig.answer(rig.wait_request(2), listed(TOPICS[0]), listed(TOPICS[1]), more=True)
    second = rig.wait_request(3)
    rig.update(listed(TOPICS[0], state=0))  # so TOPICS[2] moves to the first page
    rig.answer(second)
    rig.advance(ms=600)
    again = rig.wait_request(4)
    assert pb3.FetchSubscriptionsRequest.FromString(again.payload).offset == 0
    rig.wait_topics(TOPICS[1], TOPICS[2])


def answer_disturbed(rig: Rig, first: UMessage) -> None:
    """A list in pages that lacks TOPICS[2], with a change of TOPICS[3] between its pages."""
    count = len(rig.requests)
    rig.answer(first, listed(TOPICS[0]), more=True)
    second = rig.wait_request(count + 1)
    rig.update(listed(TOPICS[3]))
    rig.update(listed(TOPICS[3], state=0))
    rig.answer(second, listed(TOPICS[1]))


def test_a_list_with_changes_between_its_pages_ends_nothing(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), *map(listed, TOPICS[:3]))
    rig.wait_topics(*TOPICS[:3])
    for number in range(6):
        rig.advance(ms=600)
        answer_disturbed(rig, rig.wait_request(2 + 2 * number))
    rig.advance(ms=600)
    rig.wait_request(14)
    rig.wait_topics(*TOPICS[:3])
    rig.update(listed(TOPICS[2], state=0))
    rig.wait_topics(*TOPICS[:2])


@pytest.mark.parametrize("is_subscribed", [False, True])
def test_without_a_list_that_no_change_disturbed_a_missing_topic_is_listed(
    rig: Rig, is_subscribed: bool
) -> None:
    rig.answer(rig.wait_request(1), *map(listed, TOPICS[:3]))
    rig.wait_topics(*TOPICS[:3])
    rig.advance(ms=QUIET_LIST_NS // 1_000_000)
    answer_disturbed(rig, rig.wait_request(2))
    asked = rig.wait_request(4)
    assert topic_of(asked) == TOPICS[2]
    rig.answer(asked, *[listed(TOPICS[2])] * is_subscribed)
    rig.advance(ms=600)
    rig.wait_request(5)
    rig.wait_topics(*TOPICS[: 3 if is_subscribed else 2])


def test_a_list_whose_entries_move_between_its_pages_without_an_update_ends_nothing(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), *map(listed, TOPICS[:3]))
    rig.wait_topics(*TOPICS[:3])
    for number in range(3):
        rig.advance(ms=600)
        rig.answer(rig.wait_request(2 + 2 * number), *map(listed, TOPICS[:2]), more=True)
        second = rig.wait_request(3 + 2 * number)
        assert pb3.FetchSubscriptionsRequest.FromString(second.payload).offset == 1
        rig.answer(second, has_moved=True)  # TOPICS[2] is on the first page now
    rig.advance(ms=600)
    rig.answer(rig.wait_request(8), *map(listed, TOPICS[:2]), more=True)
    rig.wait_topics(*TOPICS[:3])
    rig.answer(rig.wait_request(9), listed(TOPICS[2]))
    rig.advance(ms=600)
    rig.answer(rig.wait_request(10))
    rig.wait_topics()


def test_an_empty_page_that_is_not_the_last_ends_nothing(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), *map(listed, TOPICS[:3]))
    rig.wait_topics(*TOPICS[:3])
    rig.advance(ms=600)
    rig.answer(rig.wait_request(2), more=True)
    rig.advance(ms=600)
    rig.wait_request(3)
    rig.wait_topics(*TOPICS[:3])


def test_a_list_continues_after_a_page_that_has_only_the_entry_before(rig: Rig) -> None:
    """Where the bytes of a page are limited, a large entry has its own."""
    rig.answer(rig.wait_request(1), listed(TOPICS[0]), listed(TOPICS[1]), more=True)
    rig.answer(rig.wait_request(2), more=True)
    third = rig.wait_request(3)
    assert pb3.FetchSubscriptionsRequest.FromString(third.payload).offset == 2
    rig.answer(third, listed(TOPICS[2]))
    rig.wait_topics(*TOPICS[:3])


def test_a_process_that_ignores_the_offset_is_not_asked_for_ever(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for count in (1, 2):
        rig.answer(rig.wait_request(count), *map(listed, TOPICS[:2]), more=True, has_moved=True)
    rig.wait_topics(*TOPICS[:2])
    assert len(rig.requests) == 2
    rig.service.stop()


def test_decoded_pages_are_those_of_one_list(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for count, first in enumerate((1, 2, 3)):
        rig.answer(rig.wait_request(2 * count + 1), *map(listed, TOPICS[:first]), more=True)
        rig.answer(rig.wait_request(2 * count + 2), *map(listed, TOPICS[first:]))
        rig.wait_topics(*TOPICS)
        rig.advance(ms=600)
    rig.wait_request(7)
    assert len(rig.service._list._decoded) == 2
    rig.service.stop()


def test_after_a_pause_of_the_process_the_next_request_follows_the_last_answer(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), listed(TOPICS[0]))
    for count in (2, 3, 4):
        rig.advance(ms=600 if count == 2 else 1_000)
        rig.wait_request(count)
    rig.advance(ms=500)
    waiting = [each for each in rig.requests[1:] if each.attributes.sink == UUri(OWN, 0, 3, 3)]
    for each in waiting:
        rig.answer(each, listed(TOPICS[0]))
    count = len(rig.requests)
    rig.advance(ms=1_000)
    rig.wait_request(count + 1)


def test_what_two_lists_in_pages_lack_ends(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), *map(listed, TOPICS[:3]))
    rig.wait_topics(*TOPICS[:3])
    rig.advance(ms=600)
    for count in (2, 4):
        rig.answer(rig.wait_request(count), listed(TOPICS[0]), more=True)
        rig.answer(rig.wait_request(count + 1), listed(TOPICS[1]))
    rig.wait_topics(*TOPICS[:2])


def test_each_list_in_pages_may_lack_something_else_without_a_request_more(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), *map(listed, TOPICS[:3]))
    rig.wait_topics(*TOPICS[:3])
    rig.advance(ms=600)
    for count, missing in ((2, TOPICS[2]), (4, TOPICS[1])):
        first, second = (each for each in TOPICS[:3] if each != missing)
        rig.answer(rig.wait_request(count), listed(first), more=True)
        rig.answer(rig.wait_request(count + 1), listed(second))
    rig.update(listed(TOPICS[3]))
    rig.update(listed(TOPICS[3], state=0))
    rig.wait_topics(*TOPICS[:3])
    assert len(rig.requests) == 5


def test_an_update_takes_effect_at_once_and_outlives_an_older_list(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), listed(TOPICS[3]))
    rig.wait_topics(TOPICS[3])
    rig.advance(ms=600)
    asked = rig.wait_request(2)
    rig.update(listed(TOPICS[3], state=0))
    rig.update(listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])
    rig.update(listed(TOPICS[1], state=0))
    rig.answer(asked, listed(TOPICS[1]))
    rig.wait_topics(TOPICS[0])
    rig.update(listed(TOPICS[0], state=0))
    rig.wait_topics()


def test_without_an_answer_the_last_subscriptions_stay_and_a_late_answer_counts(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])
    rig.advance(ms=600)
    late = rig.wait_request(2)
    rig.advance(ms=600)
    rig.wait_request(3)
    rig.wait_topics(TOPICS[0])
    rig.answer(late, listed(TOPICS[1]))
    rig.wait_topics(TOPICS[1])


def test_an_update_from_a_silent_process_does_not_count(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])
    for count in (2, 3):
        rig.advance(ms=600)
        rig.wait_request(count)
    rig.update(listed(TOPICS[1]))
    rig.update(listed(TOPICS[0], state=0))
    wait_until(lambda: rig.service.counts["updates_in_silence"] == 2)
    rig.answer(rig.requests[1], listed(TOPICS[0]))
    rig.update(listed(TOPICS[2]))
    rig.wait_topics(TOPICS[0], TOPICS[2])


def test_an_update_before_the_first_answer_does_not_count(rig: Rig) -> None:
    asked = rig.wait_request(1)
    rig.update(listed(TOPICS[1]))
    wait_until(lambda: rig.service.counts["updates_in_silence"] == 1)
    rig.answer(asked, listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])


def test_a_process_that_never_answers_is_reported_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    for count in range(1, 2 * UNANSWERED + 2):
        rig.wait_request(count)
        rig.advance(ms=MAX_PAUSE_MS)
    assert caplog.messages.count("usubscription.external_lost") == 1
    assert rig.service.statistics() == {"subscriptions": 0, "answering": 0}


def test_the_other_version_is_tried_after_a_refusal_and_after_silence(rig: Rig) -> None:
    first = rig.wait_request(1)
    rig.other.send(error_response(rig.ids.next(), first, UStatus(UCode.UNIMPLEMENTED, "version 4 only")))
    rig.advance(ms=600)
    second = rig.wait_request(2)
    assert second.attributes.sink == UUri(OWN, 0, 4, 3)
    entry = pb4.Subscription(topic=TOPICS[0].to_pb(), subscriber=APP.to_pb(), status=pb4.STATUS_SUBSCRIBED)
    body = pb4.FetchSubscriptionsResponse(subscriptions=[entry]).SerializeToString()
    rig.other.send(response(rig.ids.next(), second, body, UPayloadFormat.PROTOBUF))
    rig.wait_topics(TOPICS[0])
    assert rig.wait_request(3).attributes.sink == UUri(OWN, 0, 4, 4)  # registers for notifications
    for number in range(UNANSWERED + 1):
        rig.advance(ms=MAX_PAUSE_MS)
        rig.wait_request(4 + number)
    wait_until(lambda: (rig.timers.next_due_ns or 0) > rig.time.now_ns)
    both = [each.attributes.sink for each in rig.requests[-2:]]
    assert both == [UUri(OWN, 0, 3, 3), UUri(OWN, 0, 4, 3)]
    rig.answer(rig.requests[-2], listed(TOPICS[1]))
    rig.wait_topics(TOPICS[1])
    wait_until(lambda: (rig.timers.next_due_ns or 0) <= rig.time.now_ns + 600_000_000)
    rig.advance(ms=600)
    wait_until(lambda: rig.requests[-1].attributes.sink == UUri(OWN, 0, 3, 3))


def check_requests(rig: Rig, *steps: tuple[int, int]) -> None:
    """After each pause in ms there are so many requests, and not before."""
    for pause_ms, count in steps:
        rig.advance(ms=pause_ms - 1)
        assert len(rig.requests) < count
        rig.advance(ms=1)
        rig.wait_request(count)
        wait_until(lambda: (rig.timers.next_due_ns or 0) > rig.time.now_ns)
        assert len(rig.requests) == count


def test_after_one_request_without_an_answer_both_versions_are_requested_each_second(rig: Rig) -> None:
    rig.answer(rig.wait_request(1), listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])
    check_requests(rig, (501, 2), (501, 4), (1_000, 6), (1_000, 8), (1_000, 10))
    assert [each.attributes.sink for each in rig.requests[2:]] == [UUri(OWN, 0, 3, 3), UUri(OWN, 0, 4, 3)] * 4


def test_before_the_first_answer_no_request_is_repeated_within_its_ttl_and_pauses_grow(rig: Rig) -> None:
    rig.wait_request(1)
    check_requests(rig, (500, 2), (1_000, 4), (2_000, 6), (2_000, 8), (2_000, 10))
    versions = [each.attributes.sink.ue_version_major for each in rig.requests if each.attributes.sink]
    assert versions == [3, 4] * 5


def test_the_first_update_in_a_silence_advances_the_next_request(rig: Rig) -> None:
    for pause_ms, count in ((500, 1), (1_000, 2), (1_500, 4)):
        rig.wait_request(count)
        rig.advance(ms=pause_ms)
    assert len(rig.requests) == 4
    rig.update(listed(TOPICS[0]))
    rig.wait_request(6)
    rig.advance(ms=1_500)
    rig.update(listed(TOPICS[1]))
    wait_until(lambda: rig.service.counts["updates_in_silence"] == 2)
    assert len(rig.requests) == 6


def test_a_node_that_joins_the_network_advances_the_next_request_of_a_long_list(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_subscriptions=20_000)
    topics = [UUri(OWN, 0x5000, 1, 0x8000 + number) for number in range(20_000)]
    rig.answer(rig.wait_request(1), *map(listed, topics))
    wait_until(lambda: bool(rig.directory.subscribers(topics[-1])))
    rig.advance(ms=400)
    rig.links.set_state("backbone", up=True)
    wait_until(lambda: rig.timers.next_due_ns == rig.time.now_ns + 100_000_000)
    rig.advance(ms=100)
    rig.wait_request(2)
    rig.links.set_state("backbone", up=True)  # without an answer, too
    wait_until(lambda: rig.timers.next_due_ns == rig.time.now_ns + 500_000_000)
    rig.service.stop()


def test_a_request_is_valid_until_the_next_one(rig: Rig) -> None:
    """Without a listener it waits at the endpoint: a process that returns gets it at once."""
    for pause_ms, count in ((500, 1), (1_000, 2), (2_000, 4)):
        rig.wait_request(count)
        rig.advance(ms=pause_ms)
    rig.wait_request(6)
    assert [each.attributes.ttl for each in rig.requests] == [1_000, 1_000, *[2_000] * 4]


def test_a_refusal_of_one_version_does_not_replace_the_late_answer_in_the_other(rig: Rig) -> None:
    late = rig.wait_request(1)
    rig.advance(ms=600)
    rig.other.send(
        error_response(rig.ids.next(), rig.wait_request(2), UStatus(UCode.UNIMPLEMENTED, "version 3 only"))
    )
    rig.answer(late, listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])
    rig.advance(ms=1_200)
    assert rig.wait_request(3).attributes.sink == UUri(OWN, 0, 3, 3)


@pytest.mark.parametrize("refuses_version_4", [False, True])
@pytest.mark.parametrize("answer_ms", [700, 2_000, 3_000])
def test_a_slow_process_is_followed_with_one_request_at_a_time(
    rig: Rig, answer_ms: int, refuses_version_4: bool
) -> None:
    """It answers all requests in order, also those that expired long ago. A refusal takes no time."""
    answered, busy_ms, open_requests = 0, 0, []
    for _ in range(400):
        wait_until(lambda: (rig.timers.next_due_ns or 0) > rig.time.now_ns)
        rig.advance(ms=100)
        requests = [
            each for each in rig.requests if refuses_version_4 or each.attributes.sink == UUri(OWN, 0, 3, 3)
        ]
        while requests[answered:] and requests[answered].attributes.sink != UUri(OWN, 0, 3, 3):
            unknown = UStatus(UCode.UNIMPLEMENTED, "version 3 only")
            rig.other.send(error_response(rig.ids.next(), requests[answered], unknown))
            answered += 1
        open_requests.append(len(requests) - answered)
        busy_ms = busy_ms + 100 if open_requests[-1] else 0
        if busy_ms == answer_ms:
            rig.answer(requests[answered], listed(TOPICS[0]))
            answered, busy_ms = answered + 1, 0
    assert max(open_requests) <= (4 if refuses_version_4 else 2)  # before the first answer
    assert set(open_requests[-100:]) == {0, 1}
    assert rig.service.statistics()["answering"] == 1
    rig.wait_topics(TOPICS[0])


@pytest.mark.parametrize("version", [3, 4])
def test_after_any_silence_a_process_is_found_by_the_next_request(rig: Rig, version: int) -> None:
    for silent in range(1, 3 * UNANSWERED):
        rig.wait_request(silent)
        rig.advance(ms=MAX_PAUSE_MS)
    wait_until(lambda: rig.requests[-1].attributes.sink == UUri(OWN, 0, 4, 3))
    known = len(rig.requests)
    rig.advance(ms=MAX_PAUSE_MS)
    rig.wait_request(known + 2)
    asked = {each.attributes.sink: each for each in rig.requests[known:]}[UUri(OWN, 0, version, 3)]
    if version == 3:
        rig.answer(asked, listed(TOPICS[0]))
    else:
        entry = pb4.Subscription(
            topic=TOPICS[0].to_pb(), subscriber=APP.to_pb(), status=pb4.STATUS_SUBSCRIBED
        )
        body = pb4.FetchSubscriptionsResponse(subscriptions=[entry]).SerializeToString()
        rig.other.send(response(rig.ids.next(), asked, body, UPayloadFormat.PROTOBUF))
    rig.wait_topics(TOPICS[0])


def deny(rig: Rig, asked: UMessage) -> None:
    rig.other.send(error_response(rig.ids.next(), asked, UStatus(UCode.PERMISSION_DENIED, "spoofed")))


def test_a_denial_by_a_redundant_streamer_does_not_replace_the_answer(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    first = rig.wait_request(1)
    deny(rig, first)
    rig.answer(first, listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])
    deny(rig, first)
    rig.advance(ms=600)
    second = rig.wait_request(2)
    deny(rig, second)
    rig.answer(second, listed(TOPICS[1]))
    rig.wait_topics(TOPICS[1])
    assert "usubscription.external_lost" not in caplog.messages
    assert second.attributes.sink == first.attributes.sink


def test_a_process_that_denies_each_request_is_reported_as_such(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    denied = 0
    for versions in (1, *[2] * (UNANSWERED - 1)):
        rig.wait_request(denied + versions)
        for asked in rig.requests[denied:]:
            deny(rig, asked)
        denied += versions
        wait_until(lambda denied=denied: rig.service.statistics().get("denied") == denied)  # type: ignore[misc]
        rig.advance(ms=MAX_PAUSE_MS)
    rig.wait_request(denied + 1)
    [lost] = [each for each in caplog.records if each.message == "usubscription.external_lost"]
    assert vars(lost)["why"] == "PERMISSION_DENIED"


def refuse(rig: Rig, asked: UMessage) -> None:
    rig.other.send(error_response(rig.ids.next(), asked, UStatus(UCode.INVALID_ARGUMENT, "of what?")))


def refuse_both_versions(rig: Rig) -> None:
    for number in range(2):
        refuse(rig, rig.wait_request(number + 1))
        rig.advance(ms=600)


def topic_of(asked: UMessage) -> UUri | None:
    wanted = pb3.FetchSubscriptionsRequest.FromString(asked.payload)
    return UUri.from_pb(wanted.topic) if wanted.HasField("topic") else None


def test_where_a_list_of_everything_is_refused_each_known_topic_is_listed(rig: Rig) -> None:
    refuse_both_versions(rig)
    for each in TOPICS[:3]:
        rig.update(listed(each))
    rig.wait_topics(*TOPICS[:3])
    refuse(rig, rig.wait_request(3))
    asked = {}
    for number in range(4, 7):
        wanted = rig.wait_request(number)
        topic = asked[number] = topic_of(wanted)
        if topic == TOPICS[0]:
            rig.answer(wanted, listed(TOPICS[0]))
        elif topic == TOPICS[1]:
            rig.answer(wanted)
        else:
            refuse(rig, wanted)
    rig.wait_topics(TOPICS[0], TOPICS[2])  # unknown is not ended
    assert set(asked.values()) == set(TOPICS[:3])
    rig.advance(ms=600)
    everything = rig.wait_request(7)
    assert topic_of(everything) is None
    rig.answer(everything, listed(TOPICS[3]))
    rig.wait_topics(TOPICS[3])


def test_a_topic_without_an_answer_keeps_its_subscriptions(rig: Rig) -> None:
    refuse_both_versions(rig)
    rig.update(listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])
    refuse(rig, rig.wait_request(3))
    late = rig.wait_request(4)
    assert topic_of(late) == TOPICS[0]
    rig.advance(ms=600)
    assert topic_of(rig.wait_request(5)) is None
    rig.answer(late)  # of a process that may have gone
    refuse(rig, rig.requests[-1])
    rig.answer(rig.wait_request(6), listed(TOPICS[0]))
    rig.advance(ms=600)
    rig.wait_request(7)
    rig.wait_topics(TOPICS[0])


def test_topics_of_updates_in_silence_are_listed_where_a_list_of_everything_is_refused(rig: Rig) -> None:
    rig.wait_request(1)
    rig.update(listed(TOPICS[1]))
    wait_until(lambda: rig.service.counts["updates_in_silence"] == 1)
    refuse_both_versions(rig)
    refuse(rig, rig.wait_request(3))
    asked = rig.wait_request(4)
    assert topic_of(asked) == TOPICS[1]
    rig.answer(asked, listed(TOPICS[1]))
    rig.wait_topics(TOPICS[1])


def test_without_known_topics_a_refused_list_is_an_answer(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    refuse_both_versions(rig)
    refuse(rig, rig.wait_request(3))
    wait_until(lambda: "usubscription.external_found" in caplog.messages)
    rig.update(listed(TOPICS[0]))
    rig.wait_topics(TOPICS[0])


def requests_in(rig: Rig, version: int) -> list[UMessage]:
    return [each for each in rig.requests if each.attributes.sink == UUri(OWN, 0, version, 3)]


def refuse_version_4(rig: Rig, code: UCode, count: int) -> None:
    """A process of version 4 only refuses its list `count` times. Its updates in between have effect."""
    rig.wait_request(1)
    for number in range(count):
        rig.advance(ms=MAX_PAUSE_MS)
        wait_until(lambda number=number: len(requests_in(rig, 4)) > number)  # type: ignore[misc]
        refused = requests_in(rig, 4)[number]
        rig.other.send(error_response(rig.ids.next(), refused, UStatus(code, "too long")))
        wait_until(lambda: rig.service.statistics()["answering"] == 1)
        rig.update(listed(TOPICS[0]))
        rig.wait_topics(TOPICS[0])
        rig.update(listed(TOPICS[0], state=0))
        rig.wait_topics()


@pytest.mark.parametrize("code", [UCode.RESOURCE_EXHAUSTED, UCode.INTERNAL, UCode.INVALID_ARGUMENT])
def test_a_process_that_refuses_its_list_is_followed_by_its_updates(
    rig: Rig, code: UCode, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_version_4(rig, code, UNANSWERED + 2)
    wait_until(lambda: (outage := rig.directory.outage()) is not None and outage.reason == code.name)
    assert "updates_in_silence" not in rig.service.counts
    registered = [each for each in rig.requests if each.attributes.sink == UUri(OWN, 0, 4, 4)]
    assert len(registered) == 1
    [lost] = [each for each in caplog.records if each.message == "usubscription.external_lost"]
    assert vars(lost)["why"] == code.name


def test_a_process_of_version_4_that_may_have_lost_the_registration_gets_it_again(rig: Rig) -> None:
    def registrations() -> int:
        return [each.attributes.sink for each in rig.requests].count(UUri(OWN, 0, 4, 4))

    def answer_list(count: int, *topics: UUri) -> None:
        wait_until(lambda: len(requests_in(rig, 4)) >= count)
        entries = [pb4.Subscription(topic=each.to_pb(), subscriber=APP.to_pb(), status=3) for each in topics]
        body = pb4.FetchSubscriptionsResponse(subscriptions=entries).SerializeToString()
        asked = requests_in(rig, 4)[count - 1]
        rig.other.send(response(rig.ids.next(), asked, body, UPayloadFormat.PROTOBUF))
        rig.update(listed(UUri(OWN, 1, 1, 1)))  # processed after the list
        wait_until(lambda: rig.service.counts["unreadable"] == count)

    asked = rig.wait_request(1)
    rig.other.send(error_response(rig.ids.next(), asked, UStatus(UCode.UNIMPLEMENTED, "no")))
    wait_until(lambda: rig.service.statistics()["answering"] == 1)
    counts = []
    for number, topics in enumerate([(), (), TOPICS[:1], TOPICS[:1]]):
        rig.advance(ms=600)
        answer_list(number + 1, *topics)
        counts.append(registrations())
    rig.links.set_state("backbone", up=True)
    rig.advance(ms=600)
    answer_list(5, *TOPICS[:1])
    assert registrations() == 3
    assert counts == [1, 1, 2, 2]


def test_a_list_of_version_3_counts_where_version_4_is_refused(rig: Rig) -> None:
    refuse_version_4(rig, UCode.RESOURCE_EXHAUSTED, 2)
    rig.answer(requests_in(rig, 3)[-1], listed(TOPICS[1]))
    rig.wait_topics(TOPICS[1])
    wait_until(lambda: rig.directory.outage() is None)


def test_a_report_of_a_dispatcher_is_no_answer(rig: Rig) -> None:
    undelivered = UStatus(UCode.UNAVAILABLE, "link down")
    rig.other.send(error_response(rig.ids.next(), rig.wait_request(1), undelivered))
    rig.update(listed(TOPICS[0]))
    wait_until(lambda: rig.service.counts["updates_in_silence"] == 1)


def test_entries_that_cannot_be_read_or_exceed_the_limit_are_counted_and_hide_no_other(rig: Rig) -> None:
    method = listed(UUri(OWN, 1, 1, 1))
    rig.answer(rig.wait_request(1), method, *map(listed, TOPICS))
    rig.wait_topics(*TOPICS[:3])
    assert rig.service.counts == {"unreadable": 1, "over_limit": 1}


def test_an_expired_subscription_ends_without_an_answer(rig: Rig) -> None:
    entry = listed(TOPICS[0])
    entry.attributes.expire.FromMilliseconds(rig.time.clock().wall_ms() + 1_000)
    rig.answer(rig.wait_request(1), entry)
    rig.wait_topics(TOPICS[0])
    for number in range(2):
        rig.advance(ms=600)
        rig.wait_request(2 + number)
    rig.wait_topics()


def test_it_grants_topics_of_ecus_to_that_process_only(rig: Rig) -> None:
    body = pb3.SubscriptionRequest(topic=TOPICS[0].to_pb()).SerializeToString()
    codes = []
    for source in (UUri(OWN, 0, 3, 0), APP):
        asked = request(
            rig.ids.next(), source, UUri("chassis", 0, 3, 1), body, UPayloadFormat.PROTOBUF, ttl=1_000
        )
        rig.other.register_listener(ANY, source, rig._on_message)
        rig.other.send(asked)
        wait_until(lambda asked=asked: any(each.attributes.reqid == asked.id for each in rig.responses))  # type: ignore[misc]
        [answer] = [each for each in rig.responses if each.attributes.reqid == asked.id]
        codes.append(answer.attributes.commstatus)
        if codes == [None]:
            assert pb3.SubscriptionResponse.FromString(answer.payload).status.state == 2
    assert codes == [None, UCode.PERMISSION_DENIED]


def test_its_subscriptions_cannot_be_changed_here(rig: Rig) -> None:
    with pytest.raises(UStatusError, match="another process"):
        rig.service.change(RemovalPattern(ANY, ANY))
    assert rig.service.entities[0] == UUri(OWN, CLIENT, 1, 0)
