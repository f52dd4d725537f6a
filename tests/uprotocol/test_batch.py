# SPDX-License-Identifier: Apache-2.0
"""Messages as columns: a batch equals its list of messages, and exists only for messages with equal attributes."""

from struct import Struct, error

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.response_batches import batch_of_responses
from ustreamer.uprotocol.batch import MAX_BATCH, IdColumns, MessageBatch, unpack_columns
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, any_at

TOPIC = UUri("alpha.vin1", 0x1000A, 1, 0x8001)
ATTRIBUTES = UAttributes(type=UMessageType.PUBLISH, source=TOPIC, priority=UPriority.CS1, ttl=5)
uint64 = st.integers(0, 2**64 - 1)
messages_alike = st.lists(
    st.builds(UMessage, st.builds(UUID, uint64, uint64), st.just(ATTRIBUTES), st.binary(max_size=4)),
    min_size=1,
    max_size=20,
)
bound = st.none() | st.integers(-25, 25)
slices = st.builds(slice, bound, bound, st.none() | st.integers(-4, 4).filter(bool))


def numbered(count: int, attributes: UAttributes = ATTRIBUTES) -> list[UMessage]:
    return [UMessage(UUID(n << 16 | 0x7000, 1 << 63 | n), attributes, b"%d" % n) for n in range(count)]


def batch_of(messages: list[UMessage]) -> MessageBatch:
    run = MessageBatch.from_messages(messages)
    assert run is not None
    return run


def is_the_sequence(run: MessageBatch, messages: list[UMessage]) -> None:
    number = len(messages)
    assert list(run) == messages
    assert list(run) == messages  # it is not used up
    assert (len(run), bool(run)) == (number, True)
    assert list(reversed(run)) == messages[::-1]
    assert [run[at] for at in range(-number, number)] == messages * 2
    for beyond in (number, -number - 1):
        with pytest.raises(IndexError):
            run[beyond]
    assert all(each in run for each in messages)


@given(messages_alike)
def test_a_batch_equals_the_list_of_its_messages(messages: list[UMessage]) -> None:
    is_the_sequence(batch_of(messages), messages)


@given(messages_alike)
def test_the_sizes_of_a_batch_are_its_payload_sizes(messages: list[UMessage]) -> None:
    run = batch_of(messages)
    expected = [len(each.payload) for each in messages]
    assert run.sizes.tolist() == run.sizes.tolist() == expected
    assert run[1:].sizes.tolist() == expected[1:]


def test_a_common_size_is_the_size_of_each_payload() -> None:
    messages = [UMessage(each.id, ATTRIBUTES, b"four") for each in numbered(5)]
    run = batch_of(messages)
    known = MessageBatch(run.attributes, run.ids, run.payloads, size=4)
    assert known.sizes == run.sizes
    assert known.sizes.tolist() == [4] * 5


@given(messages_alike, slices)
@example(numbered(3), slice(3, None))
@example(numbered(3), slice(None, None, -1))
def test_a_slice_of_a_batch_is_the_batch_of_that_slice(messages: list[UMessage], part: slice) -> None:
    some, expected = batch_of(messages)[part], messages[part]
    assert type(some) is MessageBatch
    assert list(some) == expected
    assert (len(some), bool(some)) == (len(expected), bool(expected))
    assert [some[at] for at in range(-len(expected), len(expected))] == expected * 2
    assert list(some[1:]) == expected[1:]


def test_its_messages_share_their_attributes_and_keep_their_payloads() -> None:
    messages = numbered(3)
    for run in (batch_of(messages), batch_of(messages)[:]):
        assert run.attributes is ATTRIBUTES
        for each, of in zip(run, messages, strict=True):
            assert each.attributes is ATTRIBUTES
            assert each.payload is of.payload


def test_the_columns_equal_the_fields_of_the_messages() -> None:
    run = batch_of(numbered(3))
    msbs, lsbs = run.ids.msb_lsb_columns()
    assert list(msbs) == [0x07000, 0x17000, 0x27000]
    assert list(lsbs) == [1 << 63, 1 << 63 | 1, 1 << 63 | 2]
    assert list(run.payloads) == [b"0", b"1", b"2"]


def test_the_repr_of_a_batch_shows_size_and_attributes() -> None:
    assert repr(batch_of(numbered(3))) == f"<MessageBatch of 3, {ATTRIBUTES}>"


# --- equal headers ------------------------------------------------------------------------------------------


def test_equal_attributes_need_not_be_identical() -> None:
    messages = [
        msgspec.structs.replace(each, attributes=msgspec.structs.replace(ATTRIBUTES)) for each in numbered(9)
    ]
    assert messages[0].attributes is not messages[1].attributes
    assert list(batch_of(messages)) == messages


OTHERS: dict[str, object] = {
    "type": UMessageType.NOTIFICATION,
    "source": TOPIC.with_resource(0x8002),
    "sink": any_at("beta.vin1"),
    "priority": UPriority.CS2,
    "ttl": 6,
    "permission_level": 1,
    "reqid": UUID(0x7000, 1 << 63),
    "token": "t",
    "traceparent": "00-x",
    "unknown": b"\xfa\x07\x00",
}


@pytest.mark.parametrize("field", OTHERS)
@pytest.mark.parametrize("position", [0, 1, 4, 8])
def test_one_different_message_prevents_a_batch(field: str, position: int) -> None:
    messages = numbered(9)
    other = msgspec.structs.replace(ATTRIBUTES, **{field: OTHERS[field]})
    messages[position] = msgspec.structs.replace(messages[position], attributes=other)
    assert MessageBatch.from_messages(messages) is None


def test_responses_form_no_batch() -> None:
    answer = msgspec.structs.replace(ATTRIBUTES, type=UMessageType.RESPONSE, reqid=UUID(0x7000, 1 << 63))
    assert MessageBatch.from_messages(numbered(9, answer)) is None


def test_a_batch_is_returned_unchanged() -> None:
    run = batch_of(numbered(9))
    assert MessageBatch.from_messages(run) is run


def test_no_messages_form_no_batch() -> None:
    assert MessageBatch.from_messages([]) is None
    assert MessageBatch.from_messages(()) is None
    assert MessageBatch.from_messages(batch_of(numbered(9))[9:]) is None


# --- ids as their two halves ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(uint64, uint64), max_size=20), slices)
def test_a_slice_of_ids_has_both_halves(ids: list[tuple[int, int]], part: slice) -> None:
    msbs, lsbs = [msb for msb, _ in ids], [lsb for _, lsb in ids]
    halves = IdColumns(msbs, lsbs)
    assert halves.msb_lsb_columns() == (msbs, lsbs)
    assert halves.sliced(part).msb_lsb_columns() == (msbs[part], lsbs[part])


# --- responses that differ in their reqid -------------------------------------------------------------------

ANSWERING = msgspec.structs.replace(ATTRIBUTES, type=UMessageType.RESPONSE, sink=any_at("beta.vin1"))
valid_ids = st.builds(
    lambda time, lsb: UUID(time << 16 | 0x7000, 0b10 << 62 | lsb),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**62 - 1),
)
answers_alike = st.lists(
    st.builds(
        UMessage,
        valid_ids,
        st.builds(lambda reqid: msgspec.structs.replace(ANSWERING, reqid=reqid), valid_ids),
        st.binary(max_size=4),
    ),
    min_size=1,
    max_size=20,
)


def numbered_responses(count: int) -> list[UMessage]:
    return [
        msgspec.structs.replace(
            each, attributes=msgspec.structs.replace(ANSWERING, reqid=UUID(0x7000, 1 << 63 | 100 + n))
        )
        for n, each in enumerate(numbered(count))
    ]


def responses_as_batch(messages: list[UMessage]) -> MessageBatch:
    run = batch_of_responses(messages)
    assert run is not None
    return run


@given(answers_alike)
def test_a_response_batch_equals_the_list_of_its_messages(messages: list[UMessage]) -> None:
    run = responses_as_batch(messages)
    is_the_sequence(run, messages)
    assert MessageBatch.from_messages(run) is run


@given(answers_alike, slices)
@example(numbered_responses(3), slice(3, None))
@example(numbered_responses(3), slice(None, None, -1))
def test_a_slice_of_a_response_batch_keeps_the_reqids(messages: list[UMessage], part: slice) -> None:
    some, expected = responses_as_batch(messages)[part], messages[part]
    assert type(some) is MessageBatch
    assert list(some) == expected
    assert [some[at] for at in range(-len(expected), len(expected))] == expected * 2
    # Also for an empty slice: the attributes do not depend on the length.
    assert some.reqids == [each.attributes.reqid for each in expected]
    assert list(some[1:]) == expected[1:]


def test_the_repr_of_a_response_batch_shows_common_attributes() -> None:
    run = responses_as_batch(numbered_responses(3))
    assert repr(run) == f"<MessageBatch of 3, {ANSWERING}>"
    assert run.attributes.reqid is None
    assert batch_of(numbered(3)).reqids is None
    assert batch_of(numbered(3))[1:].reqids is None


def test_no_responses_form_no_batch() -> None:
    assert MessageBatch.from_messages(responses_as_batch(numbered_responses(9))[9:]) is None


@pytest.mark.parametrize("record", ["<Q", "<4xQxQ23x", "<4xQxQ5x3xQxQ7x", ">8sI4s3s9x"])
@pytest.mark.parametrize("number", [1, MAX_BATCH - 1, MAX_BATCH, MAX_BATCH + 1])
def test_columns_have_the_fields_of_all_records_in_order(record: str, number: int) -> None:
    size = Struct(record).size
    records = bytes(each * 7 % 251 for each in range(number * size))
    rows = [Struct(record).unpack_from(records, at * size) for at in range(number)]
    columns = unpack_columns(record, records)
    assert [tuple(column[at] for column in columns) for at in range(number)] == rows
    assert unpack_columns(record, memoryview(records)) == columns


def test_a_partial_record_is_refused() -> None:
    with pytest.raises(error):
        unpack_columns("<4xQxQ23x", bytes(44 * MAX_BATCH + 1))
