# SPDX-License-Identifier: Apache-2.0
"""The outcome of each message for each receiver, from a history without files."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_recorder.events import Anchor, Config, Counters, Damage, End, Event, Gap, Row, Target
from ustreamer_recorder.history import FLUSH_MS, STOP_MS, History
from ustreamer_recorder.layout import CountersCause, EndCause, GapCause
from ustreamer_recorder.message_logs import Life, MessageLog
from ustreamer_recorder.proof import Outcome, ReceiverProof, prove

from ustreamer.core.delivery.ledger import EMPTY_LEDGER, Verdict
from ustreamer.hooks import StoredMessage, StoredMessages
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

TOPIC, OTHER = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x1234, 1, 0x8002)
APP, RECEIVER = UUri("hpc", 7, 1, 0), UUri("hpc", 8, 1, 0)
BEGIN_MS: Final = 1_700_000_000_000
END_MS: Final = BEGIN_MS + 120_000
"""The end of the recording and of the logs."""
ANCHOR: Final = Anchor(0, BEGIN_MS)
BACKBONE = Target(1, 1, "chassis", "backbone", str(TOPIC))
CLOUD = Target(2, 2, "chassis", "cloud", str(TOPIC))
NOWHERE = Target(3, 0, "chassis")


def ns(time_ms: int) -> int:
    """The monotonic time of a wall time."""
    return (time_ms - BEGIN_MS) * 1_000_000


def id_at(time_ms: int, number: int = 0) -> UUID:
    return UUID(time_ms << 16 | 0x7000, 0b10 << 62 | number)


def row(
    id: UUID,
    verdict: Verdict = Verdict.DELIVERED,
    target: Target = BACKBONE,
    *,
    arrived_ms: int | None = None,
    settled_ms: int | None = None,
    reason: str | None = None,
    topic: UUri = TOPIC,
    attempts: int = 0,
) -> Row:
    arrived_ns = ns(id.time_ms if arrived_ms is None else arrived_ms)
    settled_ns = arrived_ns if settled_ms is None else ns(settled_ms)
    return Row(
        seq=0,
        id=id,
        verdict=verdict,
        target=target,
        type=UMessageType.PUBLISH,
        source=str(topic),
        sink=None,
        priority=1,
        size=4,
        arrived_ns=arrived_ns,
        received_ns=arrived_ns,
        first_attempt_ns=arrived_ns,
        settled_ns=settled_ns,
        attempts=attempts,
        reason=reason,
    )


def stored(id: UUID, endpoint: str = "backbone", status: UStatus | None = None) -> StoredMessage:
    return StoredMessage(id, UAttributes(type=UMessageType.PUBLISH, source=TOPIC), endpoint, None, status)


def stop(queued: int = 0, at_ms: int = END_MS) -> list[Event]:
    ledger = msgspec.structs.replace(EMPTY_LEDGER, received=queued, queued=queued)
    return [
        Counters(CountersCause.STOPPED, ns(at_ms), ledger, 0, 0),
        End(EndCause.STOPPED, ns(at_ms), at_ms, 0, 0),
    ]


def log(
    *received: UUID,
    lives: Sequence[Life] = (),
    absence: tuple[int, int] | None = None,
    sent: bool = False,
    at_ms: int | None = None,
) -> MessageLog:
    """The log of a receiver at `backbone`, or of a sender; each message at its creation or at `at_ms`."""
    found = MessageLog("app" if sent else "dash", "backbone", (TOPIC, RECEIVER))
    found.absences_ms = [absence] if absence else []
    found.lives = list(lives) or [Life(BEGIN_MS, END_MS, END_MS)]
    for id in received:
        found.copies[id] += 1
        found.times_ms[id] = id.time_ms if at_ms is None else at_ms
        found.addresses[id] = TOPIC
    return found


def proof(
    events: Sequence[Event | Damage] = (),
    received: MessageLog | None = None,
    sent: Sequence[UUID] = (),
    messages: StoredMessages | None = None,
    runs: Sequence[Sequence[Event | Damage]] = (),
) -> ReceiverProof:
    history = History(messages or StoredMessages())
    for number, run in enumerate(runs or [[*events, *stop()]]):
        history.add_segment(number, ANCHOR, run)
    return prove(history, [received or log()], [log(*sent, sent=True)] if sent else [])[0]


T: Final = BEGIN_MS + 40_000
ID: Final = id_at(T)
FULL: Final = UStatus(UCode.RESOURCE_EXHAUSTED, "queue is full")

OUTCOMES: dict[str, tuple[Callable[[], ReceiverProof], str]] = {
    "once": (lambda: proof([row(ID)], log(ID)), "delivered"),
    "twice": (lambda: proof([row(ID)], log(ID, ID)), "delivered"),
    "never": (lambda: proof([row(ID)]), "unexplained delivered, and not received"),
    "throttled": (lambda: proof([row(ID, Verdict.THROTTLED)]), "throttled"),
    "expired": (lambda: proof([row(ID, Verdict.EXPIRED, reason="ttl")]), "expired ttl"),
    "denied": (lambda: proof([row(ID, Verdict.DENIED, NOWHERE, reason="rule 1")]), "denied rule 1"),
    "no subscriber": (lambda: proof([row(ID, Verdict.NO_SUBSCRIBER, NOWHERE)]), "no_subscriber"),
    "another target only": (lambda: proof([row(ID, target=CLOUD)]), "no_subscriber no target at backbone"),
    "dead letter": (
        lambda: proof(
            [row(ID, Verdict.DEAD_LETTERED, reason="queue is full")],
            messages=StoredMessages(dead_letters=[stored(ID, status=FULL)]),
        ),
        "dead_lettered RESOURCE_EXHAUSTED: queue is full",
    ),
    "dead letter without a row": (
        lambda: proof(messages=StoredMessages(dead_letters=[stored(ID, status=FULL)])),
        "dead_lettered RESOURCE_EXHAUSTED: queue is full",
    ),
    "delivered, and later a dead letter": (
        lambda: proof([row(ID)], messages=StoredMessages(dead_letters=[stored(ID, status=FULL)])),
        "dead_lettered RESOURCE_EXHAUSTED: queue is full",
    ),
    "a dead letter of another endpoint": (
        lambda: proof([row(ID)], messages=StoredMessages(dead_letters=[stored(ID, "cloud", FULL)])),
        "unexplained delivered, and not received",
    ),
    "no stored letter": (
        lambda: proof([row(ID, Verdict.DEAD_LETTERED, reason="full")]),
        "suppressed full",
    ),
    "in a spool": (lambda: proof(messages=StoredMessages({"backbone": [stored(ID)]})), "spooled"),
    "received, and not recorded": (lambda: proof(received=log(ID)), "unexplained received, and not recorded"),
    "received, and recorded for another target": (
        lambda: proof([row(ID, target=CLOUD)], log(ID)),
        "unexplained received, and not recorded",
    ),
    "sent, and not recorded": (lambda: proof(sent=[ID]), "unexplained sent, and not recorded"),
    "sent, and its row is in a gap": (
        lambda: proof([Gap(0, GapCause.OVERRUN, ns(T), ns(T), (1, 0, 0, 0, 0, 0))], sent=[ID]),
        "unexplained sent, and its row is in a gap",
    ),
    "received, and its row is in a gap": (
        lambda: proof([Gap(0, GapCause.OVERRUN, ns(T), ns(T), (1, 0, 0, 0, 0, 0))], log(ID)),
        "delivered",
    ),
    "while the receiver was away": (
        lambda: proof([row(ID)], log(lives=[Life(BEGIN_MS, T - 1, T - 1), Life(T + 9, END_MS, END_MS)])),
        "receiver_away",
    ),
    "on its way when the receiver was killed": (
        lambda: proof(
            [row(id_at(T - 9)), row(ID)],
            # The receiver is slow: it received the message before at the time of this one.
            log(
                id_at(T - 9),
                at_ms=T + 1,
                lives=[Life(BEGIN_MS, T + 1, T + 1, was_killed=True), Life(T + 9, T + 9)],
            ),
        ),
        "receiver_away",
    ),
    "before the last message that a killed receiver received": (
        lambda: proof(
            [row(ID), row(id_at(T + 1))],
            log(
                id_at(T + 1),
                lives=[Life(BEGIN_MS, T + 1, T + 1, was_killed=True), Life(T + 9, END_MS, END_MS)],
            ),
        ),
        "unexplained delivered, and not received",
    ),
    "sent before the receiver's start, and settled after it": (
        lambda: proof(
            [row(ID, settled_ms=T + 10, attempts=1)],
            log(lives=[Life(BEGIN_MS, T - 1, T - 1), Life(T, END_MS, END_MS)]),
        ),
        "receiver_away",
    ),
    "tried before the receiver's start, and sent after it": (
        lambda: proof(
            [row(ID, settled_ms=T + 10, attempts=2)],
            log(lives=[Life(BEGIN_MS, T - 1, T - 1), Life(T, END_MS, END_MS)]),
        ),
        "unexplained delivered, and not received",
    ),
    "in an absence": (lambda: proof([row(ID)], log(absence=(T - 1, T + 1))), "receiver_away"),
    "before an absence": (
        lambda: proof([row(ID)], log(absence=(T + 1, T + 2))),
        "unexplained delivered, and not received",
    ),
    "in the queue while the receiver was away, and delivered after its start": (
        lambda: proof(
            [row(ID, settled_ms=T + 10)],
            log(lives=[Life(BEGIN_MS, T - 1, T - 1), Life(T + 9, END_MS, END_MS)]),
        ),
        "unexplained delivered, and not received",
    ),
    "before the receiver's first start": (
        lambda: proof([row(ID)], log(lives=[Life(T + 1, END_MS, END_MS)])),
        "",
    ),
    "after the receiver's end": (lambda: proof([row(ID)], log(lives=[Life(BEGIN_MS, T, T - 1)])), ""),
    "throttled before the receiver's first start": (
        lambda: proof([row(ID, Verdict.THROTTLED)], log(lives=[Life(T + 1, END_MS, END_MS)])),
        "",
    ),
    "received just before an orderly stop": (
        lambda: proof(runs=[stop(at_ms=T + 5)], received=log(ID)),
        "unexplained received, and not recorded",
    ),
    "of another topic": (lambda: proof([row(ID, topic=OTHER)]), ""),
    "received of another topic": (lambda: proof([row(ID, topic=OTHER)], log(ID)), "delivered"),
    "sent after a stop": (
        lambda: proof(
            runs=[[row(id_at(T - 5)), *stop(at_ms=T)]], received=log(id_at(T - 5)), sent=[id_at(T - 4)]
        ),
        "streamer_down",
    ),
    "sent in a stop, before a later message of another topic": (
        lambda: proof(
            runs=[[row(id_at(T - 5)), row(id_at(T - 2), topic=OTHER), *stop(at_ms=T)]],
            received=log(id_at(T - 5), id_at(T - 2)),
            sent=[id_at(T - 4)],
        ),
        "streamer_down",
    ),
    "sent in a stop, while the last message was on its way": (
        lambda: proof(
            runs=[[row(id_at(T - 5), arrived_ms=T - 3), *stop(at_ms=T)]],
            received=log(id_at(T - 5)),
            sent=[id_at(T - 4)],
        ),
        "streamer_down",
    ),
    "sent in a stop, before a later message of its topic": (
        lambda: proof(
            runs=[[row(id_at(T - 5)), row(id_at(T - 2)), *stop(at_ms=T)]],
            received=log(id_at(T - 5), id_at(T - 2)),
            sent=[id_at(T - 4)],
        ),
        "unexplained sent, and not recorded",
    ),
    "sent long before a stop, and nothing arrived later": (
        lambda: proof(
            runs=[[row(id_at(T - STOP_MS - 50)), *stop(at_ms=T)]],
            received=log(id_at(T - STOP_MS - 50)),
            sent=[id_at(T - STOP_MS - 40)],
        ),
        "unexplained sent, and not recorded",
    ),
    "sent just before a kill": (
        lambda: proof(runs=[[row(id_at(T))]], received=log(id_at(T)), sent=[id_at(T - FLUSH_MS + 1)]),
        "streamer_down",
    ),
    "in memory at a kill": (
        lambda: proof(runs=[[row(id_at(T))]], received=log(id_at(T)), sent=[id_at(T - FLUSH_MS - 1)]),
        "in_memory_at_kill",
    ),
    "too old for the memory at a kill": (
        lambda: proof(
            runs=[[Config(0, 0, '{"egress": {"backbone": {"max_age_ms": 500}}}'), row(id_at(T))]],
            received=log(id_at(T)),
            sent=[id_at(T - FLUSH_MS - 501)],
        ),
        "unexplained sent, and not recorded",
    ),
    "of a durable endpoint, before a kill": (
        lambda: proof(
            runs=[[row(id_at(T))]],
            received=log(id_at(T)),
            sent=[id_at(T - FLUSH_MS - 1)],
            messages=StoredMessages({"backbone": []}),
        ),
        "unexplained sent, and not recorded",
    ),
    "received just before a kill": (
        lambda: proof(runs=[[row(id_at(T))]], received=log(id_at(T), id_at(T, 1))),
        "delivered",
    ),
    "received long before a kill": (
        lambda: proof(runs=[[row(id_at(T))]], received=log(id_at(T), id_at(T - FLUSH_MS - 1))),
        "unexplained received, and not recorded",
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_each_message_has_its_outcome(name: str) -> None:
    make, expected = OUTCOMES[name]
    found = make()
    outcome, _, reason = expected.partition(" ")
    outcomes = +found.outcomes
    outcomes.pop(Outcome.DELIVERED, None)
    if outcome == "delivered":
        assert (outcomes, found.unexplained) == ({}, [])
        assert found.outcomes[Outcome.DELIVERED]
    else:
        assert dict(outcomes) == ({Outcome(outcome): 1} if outcome else {})
        assert dict(found.reasons) == ({(Outcome(outcome), reason): 1} if reason else {})


def test_an_unexplained_message_has_id_topic_endpoint_and_time() -> None:
    [named] = proof([row(ID, settled_ms=T + 7)]).unexplained
    assert (named.id, named.topic, named.endpoint, named.time_ms) == (ID, str(TOPIC), "backbone", T + 7)


def test_copies_are_counted() -> None:
    found = proof([row(ID), row(id_at(T, 1))], log(ID, ID, ID, id_at(T, 1)))
    assert (found.messages, found.repeated, found.most_copies) == (2, 1, 3)


def test_a_message_with_a_sink_is_expected_by_its_sink() -> None:
    notified = msgspec.structs.replace(
        row(ID), type=UMessageType.NOTIFICATION, source=str(OTHER), sink=str(RECEIVER)
    )
    [named] = proof([notified]).unexplained
    assert named.topic == str(RECEIVER)


def test_only_rows_of_the_named_subscriber_count() -> None:
    target = msgspec.structs.replace(BACKBONE, subscriber=str(APP))
    for subscriber, outcome in ((APP, Outcome.DELIVERED), (RECEIVER, Outcome.UNEXPLAINED)):
        receiver = log(ID)
        receiver.subscriber = subscriber
        assert proof([row(ID, target=target)], receiver).outcomes == {outcome: 1}


@pytest.mark.parametrize(
    ("queued", "spooled", "missing"),
    [
        ([0], 0, 0),
        ([2], 2, 0),
        ([3], 2, 1),
        ([0], 2, 0),
        ([3, 2], 2, 0),  # the second run restored the three of the first
        ([3, 0], None, 3),  # no endpoint is durable: nothing restores them
        ([3, 2], None, 5),
    ],
)
def test_queued_messages_of_a_stop_are_in_a_spool(
    queued: list[int], spooled: int | None, missing: int
) -> None:
    spools = {} if spooled is None else {"backbone": [stored(id_at(T, n)) for n in range(spooled)]}
    history = History(StoredMessages(spools))
    for number, count in enumerate(queued):
        history.add_segment(number, ANCHOR, stop(count))
    assert history.not_in_spool == missing


# ------------------------------------------------------------------------------------------------------------- property

NUMBERS = st.integers(0, 1 << 30)


class Model(msgspec.Struct):
    """A small streamer in a world without time: each message takes one way."""

    events: list[Event] = []
    received: list[UUID] = []
    sent: list[UUID] = []
    spooled: list[StoredMessage] = []
    letters: list[StoredMessage] = []

    def add(self, number: int, way: str, copies: int) -> None:
        id = id_at(BEGIN_MS + 100 + number, number)
        self.sent.append(id)
        match way:
            case "delivered":
                self.events.append(row(id))
                self.received += [id] * copies
            case "spooled":
                self.spooled.append(stored(id))
            case "dead_lettered":
                self.events.append(row(id, Verdict.DEAD_LETTERED, reason=FULL.message))
                self.letters.append(stored(id, status=FULL))
            case _:
                nowhere = way in {"denied", "no_subscriber"}
                self.events.append(row(id, Verdict[way.upper()], NOWHERE if nowhere else BACKBONE))

    def proof(self) -> ReceiverProof:
        messages = StoredMessages({"backbone": self.spooled}, self.letters)
        # A second run, so that the time of all messages is well before the last stop.
        runs = [[*self.events, *stop(len(self.spooled))]]
        return proof(received=log(*self.received), sent=self.sent, messages=messages, runs=runs)


WAYS = ("delivered", "throttled", "expired", "dead_lettered", "denied", "no_subscriber", "spooled")


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(WAYS), st.integers(1, 3)), min_size=1, max_size=30),
    st.sampled_from(["received", "row", "spooled"]),
    NUMBERS,
)
def test_every_history_is_explained_and_every_removed_line_is_named(
    ways: list[tuple[str, int]], damage: str, which: int
) -> None:
    model = Model()
    for number, (way, copies) in enumerate(ways):
        model.add(number, way, copies)
    whole = model.proof()
    assert whole.unexplained == []
    assert whole.outcomes == {
        outcome: count for outcome in Outcome if (count := sum(way == outcome for way, _ in ways))
    }
    lost = removed(model, damage, which)
    if lost is not None:
        assert [each.id for each in model.proof().unexplained] == [lost]


def removed(model: Model, damage: str, which: int) -> UUID | None:
    """Remove one trace of a message, with its copies; the id that the proof must name."""
    match damage:
        case "received":
            ids = list(dict.fromkeys(model.received))
            if ids:
                lost = ids[which % len(ids)]
                model.received = [each for each in model.received if each != lost]
                return lost
        case "row":
            lettered = {each.id for each in model.letters}
            rows = [each for each in model.events if isinstance(each, Row) and each.id not in lettered]
            if rows:
                lost_row = rows[which % len(rows)]
                model.events.remove(lost_row)
                return lost_row.id
        case "spooled":
            if model.spooled:
                return model.spooled.pop(which % len(model.spooled)).id
    return None
