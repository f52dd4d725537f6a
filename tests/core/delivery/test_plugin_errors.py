# SPDX-License-Identifier: Apache-2.0
"""A plugin that raises or returns an invalid verdict on the message path: contained, counted, logged once."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.plugin_errors import MAX_TAP_ERRORS, PluginErrors, describe_error
from ustreamer.core.delivery.ports import Filter
from ustreamer.uprotocol.umessage import UMessage, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

if TYPE_CHECKING:
    from tests.core.conftest import HoldingFilter, VerdictFilter, World

SPEED = UUri("chassis", 0x1234, 1, 0x8001)
METHOD = UUri("chassis", 0x1234, 1, 1)
APP = UUri("hpc", 0x10, 1, 0)
DASH, DASH_2 = UUri("dash", 7, 1, 0), UUri("dash", 8, 1, 0)


class Broken(Filter):
    """Always raises."""

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        raise KeyError("speed")

    def release_due(self, now_ns: int) -> UMessage | None:
        raise KeyError("speed")


def broken_tap(*_: object, **__: object) -> None:
    raise ZeroDivisionError("tap")


def event(world: "World") -> UMessage:
    return publish(world.id(), SPEED)


# ------------------------------------------------------------------------------------------------------------- filters


def test_a_filter_that_raises_passes_no_message_and_the_dead_letter_names_it(build: "type[World]") -> None:
    world = build(lambda _: [Broken()])
    world.directory.subscribe(SPEED, DASH)
    message = event(world)
    world.receive("chassis", message)
    (seen,) = world.tap_calls
    assert (seen.message, seen.verdict) == (message, Verdict.DEAD_LETTERED)
    assert seen.reason is not None
    assert (seen.reason.code, seen.reason.message) == (
        UCode.INTERNAL,
        "filter Broken raised KeyError: 'speed'",
    )
    (letter,) = world.dispatcher.dead_letters.pop_letters()
    assert (letter.message, letter.endpoint, letter.status) == (message, "dash", seen.reason)
    assert world.dispatcher.plugin_errors()["chassis"]["filter_errors"] == 1


class Unsayable(Exception):
    def __str__(self) -> str:
        raise AttributeError("detail")


def test_an_exception_whose_str_raises_affects_only_its_message(build: "type[World]") -> None:
    class Fails(Filter):
        def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
            if message.payload == b"1":
                raise Unsayable
            return None

    world = build(lambda _: [Fails()])
    world.directory.subscribe(SPEED, DASH)
    messages = [publish(world.id(), SPEED, b"%d" % number) for number in range(3)]
    world.ingress("chassis").on_batch(messages)
    world.receive("chassis", messages[1])
    world.run()
    assert world.egress["dash"].messages == [messages[0], messages[2]]
    (reason,) = {each.reason for each in world.tap_calls if each.verdict is Verdict.DEAD_LETTERED}
    assert reason is not None
    assert reason.message.endswith("Fails raised Unsayable (no text: its __str__ raises)")


def test_the_other_targets_of_the_same_message_get_it(build: "type[World]") -> None:
    world = build(lambda delivery: [Broken()] if delivery.subscriber == DASH else [])
    for subscriber in (DASH, DASH_2, APP):
        world.directory.subscribe(SPEED, subscriber)
    message = event(world)
    world.receive("chassis", message)
    world.send()
    assert [each.subscriber for each in world.egress["dash"].sent] == [DASH_2]
    assert world.egress["backbone"].messages == [message]


@pytest.mark.parametrize(
    "answer", [Verdict.DELIVERED, Verdict.EXPIRED, Verdict.NO_SUBSCRIBER, True, "yes", 1]
)
def test_an_invalid_verdict_is_a_failure_of_the_filter(
    build: "type[World]", answering: "type[VerdictFilter]", answer: Verdict
) -> None:
    world = build(lambda _: [answering([answer])])
    world.directory.subscribe(SPEED, DASH)
    world.receive("chassis", event(world))
    assert world.verdicts() == [Verdict.DEAD_LETTERED]
    assert world.tap_calls[0].reason is not None
    assert world.tap_calls[0].reason.message.startswith(
        f"filter VerdictFilter raised TypeError: admit returned {answer!r}"
    )


def send_request(world: "World") -> UMessage:
    sent_request = request(world.id(), APP, METHOD, ttl=1000)
    world.receive("backbone", sent_request)
    world.run()
    (answer,) = world.egress["backbone"].messages
    answer.check(strict=True)
    assert (answer.attributes.reqid, answer.attributes.source) == (sent_request.id, METHOD)
    assert decode_status(answer.payload).code is answer.attributes.commstatus
    return answer


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.DENIED, UCode.PERMISSION_DENIED),
        (Verdict.THROTTLED, UCode.RESOURCE_EXHAUSTED),
        (Verdict.DELIVERED, UCode.INTERNAL),
    ],
)
def test_a_request_dropped_by_a_filter_gets_an_error_response(
    build: "type[World]", answering: "type[VerdictFilter]", verdict: Verdict, code: UCode
) -> None:
    answer = send_request(build(lambda _: [answering([verdict])]))
    assert answer.attributes.commstatus is code


def test_a_request_whose_filter_raises_receives_an_internal_error_response(build: "type[World]") -> None:
    answer = send_request(build(lambda _: [Broken()]))
    assert decode_status(answer.payload).message == "filter Broken raised KeyError: 'speed'"


def test_a_held_request_replaced_by_a_newer_one_gets_an_error_response(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    world = build(lambda delivery: [holding(delivery, 10)])
    sent_request = [request(world.id(), APP, METHOD, ttl=1000) for _ in range(2)]
    for each in sent_request:
        world.receive("backbone", each)
    world.time.advance(ns=10)
    world.run()
    (answer,) = world.egress["backbone"].messages
    assert (answer.attributes.reqid, answer.attributes.commstatus) == (
        sent_request[0].id,
        UCode.RESOURCE_EXHAUSTED,
    )
    assert world.egress["chassis"].messages == [sent_request[1]]


def test_held_messages_become_dead_letters_if_release_raises(
    build: "type[World]", holding: "type[HoldingFilter]", monkeypatch: pytest.MonkeyPatch
) -> None:
    holders: list[HoldingFilter] = []

    def factory(delivery: Delivery) -> Iterable[Filter]:
        holders.append(holding(delivery, 10))
        return holders

    world = build(factory)
    world.directory.subscribe(SPEED, DASH)
    message = event(world)
    world.receive("chassis", message)
    monkeypatch.setattr(holders[0], "release_due", Broken().release_due)
    world.time.advance(ns=10)
    world.fire()
    assert [(each.message, each.verdict) for each in world.tap_calls] == [(message, Verdict.DEAD_LETTERED)]
    assert world.ledger().queued == 0

    # A message released too late is ignored.
    monkeypatch.undo()
    world.ingress("chassis").wake_at(world.time.now_ns, holders[0].delivery, holders[0])
    world.run()
    assert world.egress["dash"].sent == []


def test_a_filter_can_release_only_messages_that_it_holds(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    class Inventing(holding):  # type: ignore[misc,valid-type]
        def release_due(self, now_ns: int) -> UMessage | None:
            return publish(self.held.id, SPEED, b"made up")

    world = build(lambda delivery: [Inventing(delivery, 10)])
    world.directory.subscribe(SPEED, DASH)
    world.receive("chassis", event(world))
    world.time.advance(ns=10)
    world.run()
    assert (world.egress["dash"].sent, world.ledger().queued) == ([], 1)


def test_filters_that_cannot_be_created_pass_no_message(build: "type[World]") -> None:
    def factory(delivery: Delivery) -> Iterable[Filter]:
        raise OSError("no table")

    world = build(factory)
    world.directory.subscribe(SPEED, DASH)
    for _ in range(3):
        world.receive("chassis", event(world))
    world.send()
    assert world.verdicts() == [Verdict.DEAD_LETTERED] * 3
    assert world.tap_calls[0].reason is not None
    assert "OSError: no table" in world.tap_calls[0].reason.message


# --------------------------------------------------------------------------------------------------------- directories


@pytest.mark.parametrize("size", [1, 5])
def test_a_directory_without_a_version_is_asked_for_each_message(
    world: "World", monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def no_version(_: object) -> int:
        raise OSError("version")

    world.directory.subscribe(SPEED, DASH)
    world.receive("chassis", event(world))  # caches a route
    with monkeypatch.context() as broken:
        broken.setattr(type(world.directory), "version", property(no_version, lambda *_: None), raising=False)
        queries = world.directory.queries
        world.ingress("chassis").on_batch([event(world) for _ in range(size)])
        world.ingress("chassis").dispatch(event(world))
        assert world.directory.queries == queries + size + 1
    world.receive("chassis", event(world))
    world.run()
    assert world.verdicts() == [Verdict.DELIVERED] * (size + 3)
    assert world.dispatcher.plugin_errors()["chassis"]["directory_errors"] == 2


def test_a_directory_that_raises_costs_its_message_and_the_ledger_balances(
    world: "World", monkeypatch: pytest.MonkeyPatch
) -> None:
    world.directory.subscribe(SPEED, DASH)
    monkeypatch.setattr(world.directory, "_subscriptions", None)
    world.receive("chassis", event(world))
    assert world.verdicts() == [Verdict.DEAD_LETTERED]
    assert world.dispatcher.plugin_errors()["chassis"]["directory_errors"] == 1

    monkeypatch.undo()
    world.receive("chassis", event(world))
    world.send()
    assert world.verdicts()[-1] is Verdict.DELIVERED


def test_a_held_message_is_sent_after_a_directory_failure(
    build: "type[World]", holding: "type[HoldingFilter]", monkeypatch: pytest.MonkeyPatch
) -> None:
    world = build(lambda delivery: [holding(delivery, 10)])
    world.directory.subscribe(SPEED, DASH)
    message = event(world)
    world.receive("chassis", message)
    monkeypatch.setattr(world.directory, "_subscriptions", None)
    world.time.advance(ns=10)
    world.run()
    assert world.egress["dash"].messages == [message]


# ---------------------------------------------------------------------------------------------------------------- taps


class LineTap:
    """Records the message and the four times of each verdict."""

    def __init__(self) -> None:
        self.lines: list[tuple[UMessage, int, int, int, int]] = []
        self.batches: list[tuple[list[UMessage], list[int]]] = []

    def __call__(
        self,
        message: UMessage,
        delivery: Delivery | None,
        verdict: Verdict,
        reason: UStatus | None,
        attempts: int,
        arrived_ns: int,
        received_ns: int,
        first_attempt_ns: int,
        settled_ns: int,
    ) -> None:
        self.lines.append((message, arrived_ns, received_ns, first_attempt_ns, settled_ns))


def test_a_tap_that_raises_affects_neither_the_message_nor_other_taps(build: "type[World]") -> None:
    world = build(taps=[broken_tap])
    world.directory.subscribe(SPEED, DASH)
    messages = [event(world) for _ in range(MAX_TAP_ERRORS + 3)]
    for each in messages:
        world.receive("chassis", each)
        world.send()
    assert world.egress["dash"].messages == messages
    assert world.verdicts() == [Verdict.DELIVERED] * len(messages)


def test_a_failing_tap_is_disabled_at_its_endpoint(
    build: "type[World]", caplog: pytest.LogCaptureFixture
) -> None:
    world = build(taps=[broken_tap])
    for _ in range(MAX_TAP_ERRORS + 3):
        world.receive("chassis", event(world))
    counts = world.dispatcher.plugin_errors()["chassis"]
    assert (counts["tap_errors"], counts["taps_off"]) == (MAX_TAP_ERRORS, 1)
    assert broken_tap not in world.ingress("chassis").taps
    assert broken_tap in world.ingress("dash").taps
    assert [record.message for record in caplog.records] == ["plugins.failed", "plugins.tap_disabled"]
    assert {record.__dict__["plugin"] for record in caplog.records} == {"broken_tap"}
    assert {record.__dict__["endpoint"] for record in caplog.records} == {"chassis"}


def test_the_errors_of_a_tap_are_forgotten_when_it_is_removed(build: "type[World]") -> None:
    world = build()
    ingress = world.ingress("chassis")
    for _ in range(2):
        ingress.add_tap(broken_tap)
        for _ in range(MAX_TAP_ERRORS - 1):
            world.receive("chassis", event(world))
        assert broken_tap in ingress.taps
        ingress.remove_tap(broken_tap)
    ingress.add_tap(broken_tap)
    for _ in range(MAX_TAP_ERRORS):
        world.receive("chassis", event(world))
    assert broken_tap not in ingress.taps
    ingress.add_tap(broken_tap)
    world.receive("chassis", event(world))
    assert broken_tap in ingress.taps


class ManyTap(LineTap):
    """A batch tap that can fail."""

    broken = False

    def on_delivered_batch(
        self, messages: Sequence[UMessage], delivery: Delivery, times_ns: Sequence[int]
    ) -> None:
        if self.broken:
            raise RuntimeError("of a batch")
        self.batches.append((list(messages), list(times_ns)))


def together_at(delivery: Delivery, world: "World", messages: Sequence[UMessage], *times_ns: int) -> None:
    """An egress queue has sent these as one batch."""
    ledger = world.ingress("chassis").ledger
    ledger.received += len(messages)
    delivery.settle_delivered(ledger, messages, times_ns)


def test_a_batch_tap_is_called_once_per_delivered_batch(build: "type[World]") -> None:
    alone, together = LineTap(), ManyTap()
    world = build(taps=[alone, together])
    delivery = Delivery(world.ingress("chassis"), world.egress["backbone"], SPEED)
    messages = [event(world) for _ in range(3)]
    together_at(delivery, world, messages, 5, 7, 7)
    assert together.batches == [(messages, [5, 7, 7])]
    assert alone.lines == [(each, at, at, at, at) for each, at in zip(messages, (5, 7, 7), strict=True)]
    assert together.lines == []


def test_settling_a_batch_equals_settling_each_message(build: "type[World]") -> None:
    batch_lines, single_lines = LineTap(), LineTap()
    counts, messages, times_ns = [], [event(build()) for _ in range(3)], (5, 7, 7)
    for tap in (batch_lines, single_lines):
        world = build(taps=[tap])
        ledger = world.ingress("chassis").ledger
        ledger.received += len(messages)
        delivery = Delivery(world.ingress("chassis"), world.egress["backbone"], SPEED)
        if tap is batch_lines:
            delivery.settle_delivered(ledger, messages, times_ns)
        else:
            for message, at_ns in zip(messages, times_ns, strict=True):
                delivery.settle(ledger, message, Verdict.DELIVERED, at_ns, at_ns, None, 1, at_ns)
        counts.append((ledger.settled, delivery.delivered))
    assert batch_lines.lines == single_lines.lines
    assert counts[0] == counts[1]


def test_taps_receive_the_arrival_time_of_held_messages(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    together = ManyTap()
    world = build(taps=[together])
    delivery = Delivery(world.ingress("chassis"), world.egress["backbone"], SPEED)
    holder = holding(delivery, 100)
    delivery.set_filters((holder,))
    held, other = event(world), event(world)
    delivery.offer(held, 10)
    delivery.release_held(holder, 110)
    world.egress["backbone"]._queue.pop_batch()
    together_at(delivery, world, [held, other], 110, 110)
    assert together.lines == [(held, 10, 110, 110, 110), (other, 110, 110, 110, 110)]
    together_at(delivery, world, [other], 120)
    assert together.batches == [([other], [120])]


def test_a_failing_batch_tap_affects_no_delivery_and_is_disabled(build: "type[World]") -> None:
    alone, together = LineTap(), ManyTap()
    world = build(taps=[together, alone])
    together.broken = True
    delivery = Delivery(world.ingress("chassis"), world.egress["backbone"], SPEED)
    for _ in range(MAX_TAP_ERRORS + 3):
        together_at(delivery, world, [event(world), event(world)], 1, 1)
    assert len(alone.lines) == delivery.delivered == 2 * MAX_TAP_ERRORS + 6
    counts = world.dispatcher.plugin_errors()["chassis"]
    assert (counts["tap_errors"], counts["taps_off"]) == (MAX_TAP_ERRORS, 1)


def test_the_batch_that_disables_a_batch_tap_reaches_the_other_tap(build: "type[World]") -> None:
    together = ManyTap()
    together.broken = True
    world = build(taps=[together])
    delivery = Delivery(world.ingress("chassis"), world.egress["backbone"], SPEED)
    for _ in range(MAX_TAP_ERRORS):
        together_at(delivery, world, [event(world), event(world)], 1, 1)
    assert together not in world.ingress("chassis").taps
    assert world.verdicts() == [Verdict.DELIVERED] * 2 * MAX_TAP_ERRORS


def test_a_tap_can_be_disabled_in_the_middle_of_a_batch(build: "type[World]") -> None:
    world = build(taps=[broken_tap])
    delivery = Delivery(world.ingress("chassis"), world.egress["backbone"], SPEED)
    together_at(
        delivery, world, [event(world) for _ in range(MAX_TAP_ERRORS + 3)], *range(MAX_TAP_ERRORS + 3)
    )
    counts = world.dispatcher.plugin_errors()["chassis"]
    assert (counts["tap_errors"], counts["taps_off"]) == (MAX_TAP_ERRORS, 1)


# -------------------------------------------------------------------------------------------------------- the counters


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.DEBUG, "ustreamer.plugins"):
        yield lambda: [
            f"{record.message} {record.exc_info[1]!r}" for record in caplog.records if record.exc_info
        ]


def test_each_kind_of_plugin_error_is_logged_once_and_always_counted(
    log: Callable[[], list[str]],
) -> None:
    faults = PluginErrors("chassis")
    for error in (KeyError("a"), KeyError("b"), OSError("c"), KeyError("d")):
        faults.record_filter_error(Broken(), error)
    assert log() == ["plugins.failed KeyError('a')", "plugins.failed OSError('c')"]
    assert faults.counts() == {"filter_errors": 4, "directory_errors": 0, "tap_errors": 0, "taps_off": 0}


def test_many_exception_types_fill_neither_memory_nor_log(
    log: Callable[[], list[str]],
) -> None:
    faults = PluginErrors("chassis")
    for number in range(300):
        faults.record_filter_error(Broken(), type(f"Error{number}", (Exception,), {})())
    assert len(log()) == 100
    assert faults.counts()["filter_errors"] == 300


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        (Broken(), "Broken raised ValueError: x"),
        (broken_tap, "broken_tap raised ValueError: x"),
        (Broken().admit, "Broken.admit raised ValueError: x"),
    ],
)
def test_a_plugin_is_named_like_in_its_source(plugin: object, text: str) -> None:
    assert describe_error(plugin, ValueError("x")) == text
