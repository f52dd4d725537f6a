# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

import pytest

from ustreamer.transports.someip.endpoint.event_batcher import EventBatcher
from ustreamer.uprotocol.batch import MIN_BATCH, IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

A, B, C = (publish(UUID(0, 0), UUri("chassis", 1, 1, 0x8001 + n)).attributes for n in range(3))


class RecordingBatchListener:
    """A batch listener that records its batches."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.types: list[type] = []

    def __call__(self, message: UMessage) -> None:
        raise AssertionError("a batch listener is not called for a single event of several")

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        self.batches.append([each.payload for each in messages])
        self.types.append(type(messages))


class Scene:
    def __init__(self, received: dict[UAttributes, tuple[Listener, ...]]) -> None:
        self.alone: list[bytes] = []
        self.failed: list[tuple[str, bytes]] = []
        self.batcher = EventBatcher(
            _messages, lambda each: received.get(each, ()), self._deliver_one, self._on_listener_failed
        )

    def _deliver_one(self, message: UMessage) -> None:
        self.alone.append(message.payload)

    def _on_listener_failed(self, error: BaseException, message: UMessage) -> None:
        self.failed.append((str(error), message.payload))

    def arrive(self, *events: tuple[UAttributes, bytes]) -> None:
        for attributes, datagram in events:
            self.batcher.attributes.append(attributes)
            self.batcher.datagrams.append(datagram)
            self.batcher.received_ms.append(0)
        self.batcher.flush()


def _messages(
    attributes: Sequence[UAttributes], datagrams: Sequence[bytes], received_ms: Sequence[int]
) -> Sequence[UMessage]:
    """As `Exchange.event_messages`, without a header to remove."""
    if len(datagrams) >= MIN_BATCH and attributes.count(attributes[0]) == len(datagrams):
        return a_run(attributes[0], datagrams)
    return [UMessage(UUID(0, 0), *each) for each in zip(attributes, datagrams, strict=True)]


def a_run(attributes: UAttributes, payloads: Sequence[bytes]) -> MessageBatch:
    return MessageBatch(attributes, IdColumns([0] * len(payloads), [0] * len(payloads)), list(payloads))


def _one(message: UMessage) -> None: ...


MORE = [b"%d" % number for number in range(MIN_BATCH)]


def test_messages_of_one_listener_are_one_batch_whatever_their_topics() -> None:
    bulk = RecordingBatchListener()
    scene = Scene({A: (bulk,), B: (bulk,)})
    scene.arrive((A, b"1"), (B, b"2"), (A, b"3"))
    scene.arrive((B, b"4"), (B, b"5"))
    assert bulk.batches == [[b"1", b"2", b"3"], [b"4", b"5"]]
    assert (scene.alone, scene.batcher.delivered_in_batches) == ([], 5)


def test_a_decoded_message_keeps_its_order() -> None:
    bulk = RecordingBatchListener()
    scene = Scene({A: (bulk,), B: (bulk,)})
    for attributes, payload in ((A, b"1"), (A, b"2"), (None, b"3"), (A, b"4"), (None, b"5")):
        if attributes is None:
            scene.batcher.add_message(UMessage(UUID(0, 0), B, payload))
        else:
            scene.batcher.attributes.append(attributes)
            scene.batcher.datagrams.append(payload)
    scene.batcher.flush()
    scene.batcher.add_message(UMessage(UUID(0, 0), B, b"6"))
    scene.batcher.add_message(UMessage(UUID(0, 0), B, b"7"))
    scene.batcher.flush()
    scene.batcher.flush()
    assert bulk.batches == [[b"1", b"2", b"3", b"4", b"5"], [b"6", b"7"]]


def test_messages_of_another_listener_keep_their_order() -> None:
    bulk, other = RecordingBatchListener(), RecordingBatchListener()
    scene = Scene({A: (bulk,), B: (other,)})
    scene.arrive((A, b"1"), (A, b"2"), (B, b"3"), (B, b"4"), (A, b"5"), (A, b"6"))
    assert (bulk.batches, other.batches) == ([[b"1", b"2"], [b"5", b"6"]], [[b"3", b"4"]])


@pytest.mark.parametrize("listeners", [(), (_one,), (RecordingBatchListener(), RecordingBatchListener())])
def test_other_messages_are_delivered_one_by_one(listeners: tuple[Listener, ...]) -> None:
    scene = Scene({A: listeners})
    scene.arrive((A, b"1"), (A, b"2"), (C, b"3"))
    assert (scene.alone, scene.batcher.delivered_in_batches) == ([b"1", b"2", b"3"], 0)


def test_a_failing_batch_listener_affects_no_other_and_gets_nothing_twice() -> None:
    class Failing(RecordingBatchListener):
        def on_batch(self, messages: Sequence[UMessage]) -> None:
            super().on_batch(messages)
            raise ValueError("a bug")

    failing, other = Failing(), RecordingBatchListener()
    scene = Scene({A: (failing,), B: (other,)})
    scene.arrive((A, b"1"), (A, b"2"), (B, b"3"), (B, b"4"))
    scene.arrive((B, b"5"), (B, b"6"))
    assert scene.failed == [("a bug", b"1")]
    assert (failing.batches, other.batches) == ([[b"1", b"2"]], [[b"3", b"4"], [b"5", b"6"]])


def test_a_batch_of_one_and_an_empty_batch() -> None:
    bulk = RecordingBatchListener()
    scene = Scene({A: (bulk,)})
    scene.arrive()
    scene.arrive((A, b"1"))
    assert (scene.alone, bulk.batches) == ([b"1"], [])


# ----------------------------------------------------------------------------------------------------- message batches


def test_a_message_batch_is_delivered_as_one() -> None:
    bulk = RecordingBatchListener()
    scene = Scene({A: (bulk,)})
    scene.batcher.deliver_batch(a_run(A, MORE))
    scene.arrive(*[(A, each) for each in MORE])
    assert (bulk.batches, bulk.types) == ([MORE, MORE], [MessageBatch, MessageBatch])
    assert (scene.alone, scene.batcher.delivered_in_batches) == ([], 2 * MIN_BATCH)
    scene.batcher.flush()  # nothing remains
    assert len(bulk.batches) == 2


def test_a_message_batch_among_other_messages_keeps_its_order() -> None:
    bulk = RecordingBatchListener()
    scene = Scene({A: (bulk,), B: (bulk,)})
    before, after = (UMessage(UUID(0, 0), B, each) for each in (b"before", b"after"))
    scene.batcher.add_message(before)
    scene.arrive(*[(A, each) for each in MORE])
    for each in MORE:
        scene.batcher.attributes.append(A)
        scene.batcher.datagrams.append(each)
    scene.batcher.add_message(after)
    scene.batcher.flush()
    scene.batcher.deliver_batch(a_run(A, MORE))
    scene.batcher.add_message(after)
    scene.batcher.flush()
    assert bulk.batches == [[b"before", *MORE], [*MORE, b"after"], MORE]
    assert scene.alone == [b"after"]


def test_a_message_batch_and_messages_of_another_listener_keep_their_order() -> None:
    received: list[tuple[str, bytes]] = []

    class Named(RecordingBatchListener):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def on_batch(self, messages: Sequence[UMessage]) -> None:
            received.extend((self.name, each.payload) for each in messages)

    scene = Scene({A: (Named("a"),), B: (Named("b"),)})
    scene.arrive((B, b"1"), (B, b"2"), *[(A, each) for each in MORE])
    scene.batcher.deliver_batch(a_run(B, MORE))
    a, b = ([(name, each) for each in MORE] for name in "ab")
    assert received == [("b", b"1"), ("b", b"2"), *a, *b]


@pytest.mark.parametrize(
    "listeners",
    [(), (_one,), (RecordingBatchListener(), RecordingBatchListener()), (_one, RecordingBatchListener())],
)
@pytest.mark.parametrize("is_single", [True, False])
def test_a_message_batch_without_a_batch_listener_is_delivered_one_by_one(
    listeners: tuple[Listener, ...], is_single: bool
) -> None:
    scene = Scene({A: listeners})
    if is_single:
        scene.batcher.deliver_batch(a_run(A, MORE))
    else:
        scene.arrive(*[(A, each) for each in MORE])
    assert (scene.alone, scene.batcher.delivered_in_batches) == (MORE, 0)


def test_a_batch_listener_that_fails_gets_nothing_twice_and_the_first_message_is_named() -> None:
    class Failing(RecordingBatchListener):
        def on_batch(self, messages: Sequence[UMessage]) -> None:
            super().on_batch(messages)
            raise ValueError("a bug")

    failing = Failing()
    scene = Scene({A: (failing,)})
    scene.batcher.deliver_batch(a_run(A, MORE))
    assert (scene.failed, scene.alone, failing.batches) == ([("a bug", b"0")], [], [MORE])
