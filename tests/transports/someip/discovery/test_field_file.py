# SPDX-License-Identifier: Apache-2.0
"""The values of offered fields survive the process."""

from pathlib import Path

import msgspec
import pytest

from tests.waiting import wait_until
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.transports.someip.discovery.field_file import FieldFile
from ustreamer.transports.someip.protocol.field_values import FieldValues
from ustreamer.transports.someip.protocol.mapping import REQUEST_ID_BITS, id_with_request_id
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

LIGHT, DOOR = (UUri("hpc.vin1", 0x8401, 1, event) for event in (0x8001, 0x8002))


def value(topic: UUri, payload: bytes, time_ms: int = 1) -> UMessage:
    return publish(UUID(time_ms << 16 | 0x7000, 2 << 62), topic, payload)


def loaded(path: Path) -> list[tuple[UUri, bytes]]:
    return [
        (each.attributes.source, each.payload)
        for each in FieldFile(path, FieldValues([]), StoreStates()).load()
    ]


def test_a_value_is_written_while_the_process_runs(tmp_path: Path) -> None:
    path, values = tmp_path / "fields" / "chassis", FieldValues([LIGHT, DOOR])
    file = FieldFile(path, values, StoreStates())
    file.start()
    try:
        values.keep(value(LIGHT, b"on"))
        wait_until(lambda: loaded(path) == [(LIGHT, b"on")])
    finally:
        file.close()


def test_the_last_value_is_written_at_the_end(tmp_path: Path) -> None:
    path, values = tmp_path / "fields" / "chassis", FieldValues([LIGHT, DOOR])
    file = FieldFile(path, values, StoreStates())
    file.start()
    for payload in (b"1", b"2", b"3"):
        values.keep(value(LIGHT, payload))
    values.keep(value(DOOR, b"ajar"))
    file.close()
    assert loaded(path) == [(LIGHT, b"3"), (DOOR, b"ajar")]


def test_a_value_keeps_what_its_e2e_protection_needs(tmp_path: Path) -> None:
    """The CRC of a bridged value covers the request id, and a corrupt value must not become valid."""
    path, values = tmp_path / "chassis", FieldValues([LIGHT])
    file = FieldFile(path, values, StoreStates())
    file.start()
    sent = value(LIGHT, b"on")
    marked = msgspec.structs.replace(sent.attributes, commstatus=UCode.DATA_LOSS)
    values.keep(UMessage(id_with_request_id(sent.id, 0x0063_4711), marked, b"on"))
    file.close()
    (restored,) = FieldFile(path, values, StoreStates()).load()
    assert restored.id.lsb & REQUEST_ID_BITS == 0x0063_4711
    assert restored.attributes.commstatus is UCode.DATA_LOSS


def test_a_damaged_file_that_cannot_be_moved_aside_does_not_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "chassis"
    path.write_bytes(b"nonsense")
    (tmp_path / "chassis.damaged").mkdir()
    assert loaded(path) == []


def test_a_damaged_file_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "chassis"
    path.write_bytes(b"nonsense")
    assert loaded(path) == []
    assert [each.name for each in tmp_path.iterdir()] == ["chassis.damaged"]
    assert [each.message for each in caplog.records] == ["someip.fields_damaged"]


def test_a_refused_write_is_counted_shown_and_repeated(tmp_path: Path) -> None:
    blocked = tmp_path / "fields"
    blocked.write_bytes(b"a file in the place of the directory")
    path, values, states = blocked / "chassis", FieldValues([LIGHT]), StoreStates()
    file = FieldFile(path, values, states)
    file.start()
    values.keep(value(LIGHT, b"on"))
    wait_until(lambda: str(path) in states.snapshot())
    assert "exists" in states.snapshot()[str(path)].degraded
    blocked.unlink()
    file.close()
    assert loaded(path) == [(LIGHT, b"on")]
    assert states.snapshot()[str(path)].degraded == ""
    assert file.errors == states.snapshot()[str(path)].refused == 1


def test_a_file_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"nonsense")
    (tmp_path / "directory").mkdir()
    for name in ("damaged", "directory"):
        file = FieldFile(tmp_path / name, FieldValues([]), StoreStates())
        assert (file.load(), file.errors) == ([], 1)


def test_a_forgotten_value_is_gone() -> None:
    values = FieldValues([LIGHT, DOOR])
    values.keep(value(LIGHT, b"on"))
    values.keep(value(DOOR, b"ajar"))
    values.forget([LIGHT])
    assert [each.payload for each in values.all_values()] == [b"ajar"]
    assert values.find(LIGHT) is None
