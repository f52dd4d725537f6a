# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

import pytest

from ustreamer.transports.someip.endpoint.event_batcher import Arrivals
from ustreamer.uprotocol.batch import MANY, Halves, Run
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

A, B, C = (publish(UUID(0, 0), UUri("chassis", 1, 1, 0x8001 + n)).attributes for n in range(3))


class Bulk:
    """Takes many at once; remembers what came together."""

    def __init__(self) -> None:
        self.helpings: list[list[bytes]] = []
        self.types: list[type] = []

    def __call__(self, message: UMessage) -> None:
        raise AssertionError("who takes many is not called for one of several")

    def take_all(self, messages: Sequence[UMessage]) -> None:
        self.helpings.append([each.payload for each in messages])
        self.types.append(type(messages))


class Scene:
    def __init__(self, heard: dict[UAttributes, tuple[Listener, ...]]) -> None:
        self.alone: list[bytes] = []
        self.failed: list[tuple[str, bytes]] = []
        self.arrivals = Arrivals(_messages, lambda each: heard.get(each, ()), self._one, self._failed)

    def _one(self, message: UMessage) -> None:
        self.alone.append(message.payload)

    def _failed(self, error: Exception, message: UMessage) -> None:
        self.failed.append((str(error), message.payload))

    def arrive(self, *events: tuple[UAttributes, bytes]) -> None:
        for attributes, datagram in events:
            self.arrivals.attributes.append(attributes)
            self.arrivals.datagrams.append(datagram)
        self.arrivals.deliver()


def _messages(attributes: Sequence[UAttributes], datagrams: Sequence[bytes]) -> Sequence[UMessage]:
    """As the exchange does, without a header to cut off."""
    if len(datagrams) >= MANY and attributes.count(attributes[0]) == len(datagrams):
        return a_run(attributes[0], datagrams)
    return [UMessage(UUID(0, 0), *each) for each in zip(attributes, datagrams, strict=True)]


def a_run(attributes: UAttributes, payloads: Sequence[bytes]) -> Run:
    return Run(attributes, Halves([0] * len(payloads), [0] * len(payloads)), list(payloads))


def _one(message: UMessage) -> None: ...


MORE = [b"%d" % number for number in range(MANY)]


def test_what_one_listener_hears_comes_together_whatever_its_topic() -> None:
    bulk = Bulk()
    scene = Scene({A: (bulk,), B: (bulk,)})
    scene.arrive((A, b"1"), (B, b"2"), (A, b"3"))
    scene.arrive((B, b"4"), (B, b"5"))
    assert bulk.helpings == [[b"1", b"2", b"3"], [b"4", b"5"]]
    assert (scene.alone, scene.arrivals.received) == ([], 5)


def test_what_is_a_message_already_keeps_its_place() -> None:
    bulk = Bulk()
    scene = Scene({A: (bulk,), B: (bulk,)})
    for attributes, payload in ((A, b"1"), (A, b"2"), (None, b"3"), (A, b"4"), (None, b"5")):
        if attributes is None:
            scene.arrivals.add(UMessage(UUID(0, 0), B, payload))
        else:
            scene.arrivals.attributes.append(attributes)
            scene.arrivals.datagrams.append(payload)
    scene.arrivals.deliver()
    scene.arrivals.add(UMessage(UUID(0, 0), B, b"6"))
    scene.arrivals.add(UMessage(UUID(0, 0), B, b"7"))
    scene.arrivals.deliver()
    scene.arrivals.deliver()
    assert bulk.helpings == [[b"1", b"2", b"3", b"4", b"5"], [b"6", b"7"]]


def test_what_another_hears_is_not_overtaken() -> None:
    bulk, other = Bulk(), Bulk()
    scene = Scene({A: (bulk,), B: (other,)})
    scene.arrive((A, b"1"), (A, b"2"), (B, b"3"), (B, b"4"), (A, b"5"), (A, b"6"))
    assert (bulk.helpings, other.helpings) == ([[b"1", b"2"], [b"5", b"6"]], [[b"3", b"4"]])


@pytest.mark.parametrize("listeners", [(), (_one,), (Bulk(), Bulk())])
def test_all_else_is_delivered_one_by_one(listeners: tuple[Listener, ...]) -> None:
    scene = Scene({A: listeners})
    scene.arrive((A, b"1"), (A, b"2"), (C, b"3"))
    assert (scene.alone, scene.arrivals.received) == ([b"1", b"2", b"3"], 0)


def test_one_that_fails_over_many_keeps_the_others_from_nothing_and_gets_nothing_twice() -> None:
    class Failing(Bulk):
        def take_all(self, messages: Sequence[UMessage]) -> None:
            super().take_all(messages)
            raise ValueError("a bug")

    failing, other = Failing(), Bulk()
    scene = Scene({A: (failing,), B: (other,)})
    scene.arrive((A, b"1"), (A, b"2"), (B, b"3"), (B, b"4"))
    scene.arrive((B, b"5"), (B, b"6"))
    assert scene.failed == [("a bug", b"1")]
    assert (failing.helpings, other.helpings) == ([[b"1", b"2"]], [[b"3", b"4"], [b"5", b"6"]])


def test_a_single_one_and_none_at_all() -> None:
    bulk = Bulk()
    scene = Scene({A: (bulk,)})
    scene.arrive()
    scene.arrive((A, b"1"))
    assert (scene.alone, bulk.helpings) == ([b"1"], [])


# ---------------------------------------------------------------------------------------------------------------- runs


def test_a_run_goes_on_as_one() -> None:
    bulk = Bulk()
    scene = Scene({A: (bulk,)})
    scene.arrivals.deliver_all(a_run(A, MORE))
    scene.arrive(*[(A, each) for each in MORE])
    assert (bulk.helpings, bulk.types) == ([MORE, MORE], [Run, Run])
    assert (scene.alone, scene.arrivals.received) == ([], 2 * MANY)
    scene.arrivals.deliver()  # and nothing of them is left
    assert len(bulk.helpings) == 2


def test_a_run_among_other_messages_keeps_its_place() -> None:
    bulk = Bulk()
    scene = Scene({A: (bulk,), B: (bulk,)})
    before, after = (UMessage(UUID(0, 0), B, each) for each in (b"before", b"after"))
    scene.arrivals.add(before)
    scene.arrive(*[(A, each) for each in MORE])
    for each in MORE:
        scene.arrivals.attributes.append(A)
        scene.arrivals.datagrams.append(each)
    scene.arrivals.add(after)
    scene.arrivals.deliver()
    scene.arrivals.deliver_all(a_run(A, MORE))
    scene.arrivals.add(after)
    scene.arrivals.deliver()
    assert bulk.helpings == [[b"before", *MORE], [*MORE, b"after"], MORE]
    assert scene.alone == [b"after"]


def test_a_run_and_what_another_hears_do_not_overtake_each_other() -> None:
    heard: list[tuple[str, bytes]] = []

    class Named(Bulk):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def take_all(self, messages: Sequence[UMessage]) -> None:
            heard.extend((self.name, each.payload) for each in messages)

    scene = Scene({A: (Named("a"),), B: (Named("b"),)})
    scene.arrive((B, b"1"), (B, b"2"), *[(A, each) for each in MORE])
    scene.arrivals.deliver_all(a_run(B, MORE))
    a, b = ([(name, each) for each in MORE] for name in "ab")
    assert heard == [("b", b"1"), ("b", b"2"), *a, *b]


@pytest.mark.parametrize("listeners", [(), (_one,), (Bulk(), Bulk()), (_one, Bulk())])
@pytest.mark.parametrize("by_itself", [True, False])
def test_a_run_that_is_not_for_one_who_takes_many_is_delivered_one_by_one(
    listeners: tuple[Listener, ...], by_itself: bool
) -> None:
    scene = Scene({A: listeners})
    if by_itself:
        scene.arrivals.deliver_all(a_run(A, MORE))
    else:
        scene.arrive(*[(A, each) for each in MORE])
    assert (scene.alone, scene.arrivals.received) == (MORE, 0)


def test_one_that_fails_over_a_run_gets_nothing_twice_and_the_first_is_named() -> None:
    class Failing(Bulk):
        def take_all(self, messages: Sequence[UMessage]) -> None:
            super().take_all(messages)
            raise ValueError("a bug")

    failing = Failing()
    scene = Scene({A: (failing,)})
    scene.arrivals.deliver_all(a_run(A, MORE))
    assert (scene.failed, scene.alone, failing.helpings) == ([("a bug", b"0")], [], [MORE])
