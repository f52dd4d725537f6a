# SPDX-License-Identifier: Apache-2.0
"""The lines of tap readers, and the cost of taps for others."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.router import SELF
from ustreamer.host.admin.payload_decoding import MAX_DECODED, DecodedPayload, FindDecoder
from ustreamer.host.admin.taps import (
    MAX_BYTES,
    MAX_SUBSCRIBERS,
    SHOWN_BYTES,
    Dropped,
    TapFilter,
    TapLine,
    TapReader,
    Taps,
)
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri, any_at

if TYPE_CHECKING:
    from tests.core.conftest import HoldingFilter, World

SPEED, DOORS = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x1234, 1, 0x8002)
APP, DASH = UUri("hpc", 0x10, 1, 0), UUri("dash", 7, 1, 0)
METHOD = UUri("dash", 7, 1, 1)
OpenTapReader = Callable[..., TapReader]


def no_decoder(topic: UUri) -> None:
    """Decodes the payloads of no topic."""


@pytest.fixture
def open_reader(world: "World") -> Iterator[OpenTapReader]:
    readers: list[TapReader] = []

    def opened(max_notes: int = 100, find: FindDecoder = no_decoder, **tap_filter: object) -> TapReader:
        shared = Taps(world.dispatcher, find).subscribers_of
        reader = TapReader(TapFilter(**tap_filter), world.clock, find, max_notes, shared)  # type: ignore[arg-type]
        reader.attach(world.dispatcher)
        readers.append(reader)
        return reader

    yield opened
    for reader in readers:
        reader.close()


def seen(reader: TapReader) -> list[TapLine]:
    return [each for each in reader.wait_lines(0) if isinstance(each, TapLine)]


def event(world: "World", topic: UUri = SPEED, payload: bytes = b"12") -> UMessage:
    return publish(world.id(), topic, payload)


def test_each_target_of_a_message_is_a_line(world: "World", open_reader: OpenTapReader) -> None:
    world.directory.subscribe(SPEED, APP)
    world.directory.subscribe(SPEED, DASH)
    reader = open_reader()
    sent = event(world)
    world.receive("chassis", sent)
    world.time.advance(ms=3)
    world.run()
    by_egress = {each.egress: each for each in seen(reader)}
    assert by_egress == {
        "backbone": TapLine(
            time_ms=world.clock.wall_ms(),
            id=str(sent.id),
            type="PUBLISH",
            source=str(SPEED),
            sink=None,
            subscriber=None,
            ingress="chassis",
            egress="backbone",
            verdict="delivered",
            code=None,
            reason=None,
            attempts=1,
            latency_ms=3.0,
            payload_size=2,
            payload=None,
            decoded=None,
            subscribers=(str(APP),),
        ),
        "dash": by_egress["dash"],
    }
    assert by_egress["dash"].subscriber == str(DASH)


def test_the_latency_of_a_message_that_is_settled_on_the_receiving_thread_is_real(
    world: "World", open_reader: OpenTapReader
) -> None:
    reader = open_reader()
    note = reader.tap_at("chassis")
    arrived_ns = world.clock.monotonic_ns()
    world.time.advance(ms=2)  # the send, for which the receiving thread reads no clock
    note(event(world), None, Verdict.DELIVERED, None, 1, arrived_ns, arrived_ns, arrived_ns, arrived_ns)
    note(event(world), None, Verdict.DELIVERED, None, 1, arrived_ns, arrived_ns, arrived_ns, arrived_ns + 7)
    assert [each.latency_ms for each in seen(reader)] == [2.0, 0.000007]


def test_a_tap_can_be_of_one_type_and_one_endpoint(world: "World", open_reader: OpenTapReader) -> None:
    by_type = open_reader(type=UMessageType.REQUEST)
    here, there = open_reader(ingress="chassis"), open_reader(ingress="backbone")
    world.receive("chassis", event(world))
    assert [len(seen(each)) for each in (by_type, here, there)] == [0, 1, 0]


def test_the_subscribers_of_a_multicast_target_are_named_up_to_a_limit(
    world: "World", open_reader: OpenTapReader
) -> None:
    subscribers = [UUri("hpc", 0x100 + number, 1, 0) for number in range(MAX_SUBSCRIBERS + 4)]
    for each in subscribers:
        world.directory.subscribe(SPEED, each)
    reader = open_reader()
    world.receive("chassis", event(world))
    world.run()
    [line] = seen(reader)
    assert line.subscribers == tuple(map(str, subscribers[:MAX_SUBSCRIBERS]))


def test_a_message_without_target_is_a_line_with_the_reason(
    world: "World", open_reader: OpenTapReader
) -> None:
    reader = open_reader()
    world.receive("chassis", event(world))
    world.receive("backbone", event(world))
    [unwanted, spoofed] = seen(reader)
    assert (unwanted.verdict, unwanted.egress, unwanted.code) == ("no_subscriber", None, None)
    assert (spoofed.verdict, spoofed.ingress, spoofed.code) == ("denied", "backbone", "PERMISSION_DENIED")
    assert "does not live behind" in (spoofed.reason or "")


def test_the_streamers_own_messages_are_seen_too(world: "World", open_reader: OpenTapReader) -> None:
    reader = open_reader()
    world.receive("backbone", request(world.id(), APP, UUri("mars", 1, 1, 1), ttl=5000))
    world.run()
    own = [each for each in seen(reader) if each.ingress == SELF]
    assert [(each.type, each.egress) for each in own] == [("RESPONSE", "backbone"), ("PUBLISH", None)]


@pytest.mark.parametrize(
    ("tap_filter", "expected"),
    [
        ({"source": SPEED}, {"PUBLISH 8001"}),
        ({"source": any_at("chassis")}, {"PUBLISH 8001", "PUBLISH 8002"}),
        ({"sink": METHOD}, {"REQUEST 0"}),
        ({"sink": any_at("chassis")}, set()),
        ({"verdict": Verdict.NO_SUBSCRIBER}, {"PUBLISH 8002"}),
        ({"source": SPEED, "verdict": Verdict.NO_SUBSCRIBER}, set()),
    ],
)
def test_a_tap_reader_shows_only_matching_messages(
    world: "World", open_reader: OpenTapReader, tap_filter: dict[str, object], expected: set[str]
) -> None:
    world.directory.subscribe(SPEED, APP)
    reader = open_reader(**tap_filter)
    world.receive("chassis", event(world))
    world.receive("chassis", event(world, DOORS))
    world.receive("backbone", request(world.id(), APP, METHOD, ttl=5000))
    world.run()
    assert {f"{each.type} {each.source.rpartition('/')[2]}" for each in seen(reader)} == expected


def test_a_payload_is_shown_on_request_up_to_a_limit(world: "World", open_reader: OpenTapReader) -> None:
    reader, without = open_reader(payload=True), open_reader()
    world.receive("chassis", event(world, payload=b"\x01" * 1000))
    [line] = seen(reader)
    assert (line.payload_size, line.payload) == (1000, "01" * SHOWN_BYTES)
    assert seen(without)[0].payload is None


def speeds(topic: UUri) -> Callable[[bytes], object] | None:
    """Decodes SPEED only, which has four bytes."""

    def read(payload: bytes) -> object:
        if len(payload) > 4:
            raise ValueError("too long")
        return {"speed": int.from_bytes(payload, "big")}

    return read if topic == SPEED else None


def test_a_payload_is_decoded_on_request(world: "World", open_reader: OpenTapReader) -> None:
    reader, without = open_reader(find=speeds, decode=True), open_reader(find=speeds)
    both = open_reader(find=speeds, decode=True, payload=True)
    for topic, payload in ((SPEED, b"\0\0\0\7"), (SPEED, b"\1" * 1000), (DOORS, b"\2")):
        world.receive("chassis", event(world, topic, payload))
    read, long, unknown = seen(reader)
    assert (read.decoded, read.payload) == (DecodedPayload(msgspec.Raw(b'{"speed":7}')), None)
    assert (long.decoded, long.payload) == (DecodedPayload(problem="too long"), "01" * SHOWN_BYTES)
    assert (unknown.decoded, unknown.payload) == (None, "02")
    assert [each.decoded for each in seen(without)] == [None] * 3
    assert [each.payload for each in seen(both)] == ["00000007", "01" * SHOWN_BYTES, "02"]


def test_no_decoder_runs_on_the_message_path(world: "World", open_reader: OpenTapReader) -> None:
    sent_request: list[UUri] = []

    def find(topic: UUri) -> Callable[[bytes], object]:
        sent_request.append(topic)
        return bytes.hex

    reader = open_reader(find=find, decode=True)
    for _ in range(3):
        world.receive("chassis", event(world))
    assert sent_request == []
    assert [str(each.decoded) for each in seen(reader)] == ['"3132"'] * 3
    assert sent_request == [SPEED]


def test_large_payloads_wait_up_to_a_bound_and_the_rest_is_missed(
    world: "World", open_reader: OpenTapReader
) -> None:
    reader = open_reader(find=speeds, decode=True)
    large, fit = bytes(MAX_DECODED), MAX_BYTES // MAX_DECODED
    for _ in range(fit + 2):
        world.receive("chassis", event(world, payload=large))
    world.receive("chassis", event(world, payload=large + b"\0"))  # only the beginning is stored
    portions = [reader.wait_lines(0) for _ in range(fit)]
    assert max(map(len, portions)) < 10  # otherwise their values could take a hundred times as much at once
    notified = [each for portion in portions for each in portion]
    assert [each for each in notified if isinstance(each, Dropped)] == [Dropped(2)]
    *lines, over = [each for each in notified if isinstance(each, TapLine)]
    assert [str(each.decoded) for each in lines] == ["not decoded: too long"] * fit
    assert str(over.decoded) == f"not decoded: {MAX_DECODED + 1} bytes, more than {MAX_DECODED}"
    world.receive("chassis", event(world, payload=large))  # a slot is free again
    assert len(seen(reader)) == 1


def test_a_token_is_never_shown(world: "World", open_reader: OpenTapReader) -> None:
    reader = open_reader(payload=True)
    sent_request = request(world.id(), APP, METHOD, ttl=5000)
    with_token = msgspec.structs.replace(sent_request.attributes, token="ignition-key-4711")
    world.receive("backbone", UMessage(sent_request.id, with_token, sent_request.payload))
    world.run()
    [line] = reader.wait_lines(0)
    assert "4711" not in repr(line)


def test_a_slow_tap_reader_loses_lines_and_gets_their_number(
    world: "World", open_reader: OpenTapReader
) -> None:
    reader = open_reader(max_notes=3)
    sent = [event(world) for _ in range(5)]
    for message in sent:
        world.receive("chassis", message)
    *lines, missed = reader.wait_lines(0)
    assert [each.id for each in lines if isinstance(each, TapLine)] == [str(each.id) for each in sent[:3]]
    assert missed == Dropped(2)
    world.receive("chassis", event(world))
    [after] = reader.wait_lines(0)
    assert isinstance(after, TapLine)


def test_many_lines_arrive_in_portions_without_loss(world: "World", open_reader: OpenTapReader) -> None:
    reader = open_reader(max_notes=2000)
    for _ in range(1200):
        world.receive("chassis", event(world))
    assert [len(reader.wait_lines(0)) for _ in range(4)] == [500, 500, 200, 0]


def test_a_closed_tap_reader_costs_nothing_and_others_continue(
    world: "World", open_reader: OpenTapReader
) -> None:
    before = {name: world.ingress(name).taps for name in ("chassis", "backbone")}
    first, second = open_reader(), open_reader()
    first.close()
    first.close()
    world.receive("chassis", event(world))
    assert first.wait_lines(0) == []
    assert len(seen(second)) == 1
    second.close()
    assert {name: world.ingress(name).taps for name in ("chassis", "backbone")} == before


def test_the_number_of_tap_readers_is_limited_and_slots_are_released(world: "World") -> None:
    taps = Taps(world.dispatcher, no_decoder, max_readers=2)
    first, _ = taps.open_reader(TapFilter()), taps.open_reader(TapFilter())
    with pytest.raises(UStatusError, match="too many tap readers") as refused:
        taps.open_reader(TapFilter())
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    first.close()
    first.close()
    third = taps.open_reader(TapFilter())
    with pytest.raises(UStatusError):
        taps.open_reader(TapFilter())
    third.close()


def test_a_released_message_is_consistent_after_a_tap_closes(
    unchecked: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    world = unchecked(filters=lambda delivery: [holding(delivery, 1000)])
    world.directory.subscribe(SPEED, APP)
    ingress = world.ingress("chassis")
    ingress.taps = ()
    reader = TapReader(TapFilter(), world.clock, no_decoder)
    reader.attach(world.dispatcher)
    world.receive("chassis", event(world))
    world.time.advance(ms=1)
    world.fire()
    [delivery] = ingress._deliveries
    assert delivery._arrival_ns
    reader.close()
    assert not delivery._arrival_ns


def test_a_publication_that_failed_its_e2e_check_shows_its_commstatus(
    world: "World", open_reader: OpenTapReader
) -> None:
    world.directory.subscribe(SPEED, APP)
    reader = open_reader()
    plain = event(world)
    attributes = msgspec.structs.replace(plain.attributes, commstatus=UCode.DATA_LOSS)
    world.receive("chassis", UMessage(plain.id, attributes, plain.payload))
    world.run()
    [line] = seen(reader)
    assert (line.verdict, line.code, line.reason) == ("delivered", "DATA_LOSS", None)
