# SPDX-License-Identifier: Apache-2.0
"""The messages of a state directory, read for commands."""

from pathlib import Path

import pytest

from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.host.runtime import streamer
from ustreamer.host.storage import stored_messages
from ustreamer.host.storage.dead_letter_store import DeadLettersConfig, DeadLetterStore, StoredDeadLetter
from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.host.storage.spool_records import SpoolRecord
from ustreamer.host.storage.stored_messages import read_stored_messages
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import encode

TOPIC, APP = UUri("chassis", 0x1234, 1, 0x8001), UUri("hpc", 7, 1, 0)
LIMITS = SpoolLimits(1_000, 1_000_000)


def message(number: int) -> UMessage:
    return publish(UUID(1_700_000_000_000 << 16 | 0x7000, 0b10 << 62 | number), TOPIC, b"payload")


def write_spool(state_dir: Path, endpoint: str, *messages: UMessage) -> None:
    spool = Spool(state_dir / "spool" / endpoint, LIMITS)
    spool.open()
    for each in messages:
        attributes = encode(each.id, each.attributes)
        record = SpoolRecord(attributes, each.payload, "chassis", str(TOPIC), str(APP), 1, 2, b"boot", 3)
        spool.commit([(1, record)])
    spool.close()


def test_the_directory_of_spools_is_that_of_the_streamer() -> None:
    assert stored_messages.SPOOL == streamer.SPOOL


def test_an_empty_directory_has_no_message(tmp_path: Path) -> None:
    found = read_stored_messages(tmp_path)
    assert (found.spooled, found.dead_letters) == ({}, [])


def test_spools_and_dead_letters_are_read_with_endpoint_subscriber_and_reason(tmp_path: Path) -> None:
    write_spool(tmp_path, "backbone", message(1), message(2))
    write_spool(tmp_path, "cloud")
    write_spool(tmp_path, "backbone.damaged-1", message(3))
    status = UStatus(UCode.RESOURCE_EXHAUSTED, "queue is full")
    store = DeadLetterStore(tmp_path / "dead-letters", DeadLettersConfig())
    store.append([StoredDeadLetter.from_dead_letter(DeadLetter(message(4), status, "backbone", 0, 0, 0), 0)])
    store.close()

    found = read_stored_messages(tmp_path)
    assert list(found.spooled) == ["backbone", "cloud"]
    assert [(each.id, each.subscriber) for each in found.spooled["backbone"]] == [
        (message(1).id, str(APP)),
        (message(2).id, str(APP)),
    ]
    [letter] = found.dead_letters
    assert (letter.id, letter.attributes.source, letter.endpoint, letter.status) == (
        message(4).id,
        TOPIC,
        "backbone",
        status,
    )


def test_a_damaged_spool_is_an_error(tmp_path: Path) -> None:
    write_spool(tmp_path, "backbone", message(1))
    (tmp_path / "spool" / "backbone" / "data.mdb").write_bytes(b"noise" * 1_000)
    with pytest.raises(StoreDamaged):
        read_stored_messages(tmp_path)
