# SPDX-License-Identifier: Apache-2.0
"""Files of a real drive, read back by the library or the program that they are for."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.sample_drives import Drive
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.commands import export
from ustreamer_pipeline.errors import UnavailableError
from ustreamer_pipeline.export.mcap_file import json_schema, nested, write_mcap
from ustreamer_pipeline.export.messages import SampledMessage, read_messages
from ustreamer_pipeline.export.pcapng import PORT, someip_packet, write_pcapng
from ustreamer_pipeline.export.signal_tables import write_arrow, write_csv

from tests.e2e.rigs.capture import skip_without_tshark
from ustreamer.uprotocol.uuri import UUri

SPEED = "up://chassis/1234/1/8001"
STATE = "up://chassis/2001/1/8001"
ID = "018bcfe5-6800-7000-8000-000000000001"
MESSAGES = [
    SampledMessage("vin1", 1_700_000_000_000_001, ID, 1_700_000_000_000, SPEED, 4, b"\x01\x02\x03\x04", None,
                   [("speed", 1.5, "m/s"), ("gear", "drive", None)]),
    SampledMessage("vin2", 1_700_000_000_500_000, ID, 1_700_000_000_000, STATE, 9, b"\xff", "cut: 1 of 9 bytes are here", []),
]  # fmt: skip


def test_a_csv_file_has_one_row_per_value(tmp_path: Path) -> None:
    assert write_csv(iter(MESSAGES), tmp_path / "signals.csv") == 2
    with (tmp_path / "signals.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(each["time"], each["signal"], each["value"], each["unit"]) for each in rows] == [
        ("2023-11-14T22:13:20.000001+00:00", "speed", "1.5", "m/s"),
        ("2023-11-14T22:13:20.000001+00:00", "gear", "drive", ""),
    ]


def test_an_arrow_file_has_typed_columns(tmp_path: Path) -> None:
    assert write_arrow(iter(MESSAGES), tmp_path / "signals.arrow") == 2
    table = pa.ipc.open_stream(tmp_path / "signals.arrow").read_all()
    assert table.schema.field("time").type == pa.timestamp("us", "UTC")
    assert table.column("value_double").to_pylist() == [1.5, None]
    assert table.column("value_string").to_pylist() == [None, "drive"]
    assert table.column("topic").to_pylist() == [SPEED, SPEED]


def test_signals_are_nested_as_in_the_payload() -> None:
    value = nested([("wheels[0].speed", 1.0, None), ("wheels[1].speed", 2, None), ("on", True, None)])
    assert value == {"wheels": [{"speed": 1.0}, {"speed": 2}], "on": True}
    assert nested([("[0]", 7, None), ("[1]", 8, None)]) == {"value": [7, 8]}
    assert nested([("grid[0][0]", 1, None), ("grid[1][0]", 2, None)]) == {"grid": [[1], [2]]}
    assert json_schema(value)["properties"]["wheels"] == {
        "type": "array",
        "items": {"type": "object", "properties": {"speed": {"type": "number"}}},
    }


def dissect(path: Path, *fields: str) -> list[dict[str, Any]]:
    skip_without_tshark()
    columns = [argument for field in fields for argument in ("-e", field)]
    done = subprocess.run(
        ["tshark", "-r", path, "-d", f"udp.port=={PORT},someip", "-T", "fields", *columns],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return [dict(zip(fields, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]


def test_tshark_reads_the_events(tmp_path: Path) -> None:
    assert write_pcapng(iter(MESSAGES), tmp_path / "drive.pcapng") == 2
    names = ("frame.time_epoch", "frame.interface_name", "frame.comment", "ip.checksum.status", "frame.len")
    someip = (
        "someip.serviceid",
        "someip.methodid",
        "someip.interfaceversion",
        "someip.messagetype",
        "someip.payload",
    )
    first, second = dissect(tmp_path / "drive.pcapng", *names, *someip, "_ws.malformed")
    assert first["frame.time_epoch"].startswith("1700000000.000001")
    assert (first["frame.interface_name"], second["frame.interface_name"]) == ("vin1", "vin2")
    assert first["frame.comment"] == ID
    assert [int(first[each], 0) for each in someip[:4]] == [0x1234, 0x8001, 1, 2]
    assert (first["someip.payload"], first["_ws.malformed"]) == ("01020304", "")
    assert int(second["frame.len"]) == 20 + 8 + 16 + 9
    assert int(second["someip.serviceid"], 0) == 0x2001


def test_the_ip_header_has_a_valid_checksum() -> None:
    packet = someip_packet(UUri.parse(SPEED), b"abc", 3)
    words = [int.from_bytes(packet[at : at + 2], "big") for at in range(0, 20, 2)]
    total = sum(words)
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    assert int.from_bytes(packet[2:4], "big") == len(packet)


# --- a real drive -----------------------------------------------------------------------------------------------------


def test_a_drive_is_exported_with_every_message(drive: Drive, tmp_path: Path) -> None:
    speeds = list(read_messages(str(drive.lake), "//chassis/1234/1/8001"))
    assert speeds
    assert {(each.topic, each.gateway) for each in speeds} == {(SPEED, "hpc.vin1")}
    path = tmp_path / "drive.pcapng"
    arguments = ["export", str(drive.lake), str(path), "--topic", "//chassis/1234/1/8001"]
    assert main([*arguments, "--format", "pcapng"]) == 0
    packets = dissect(path, "someip.payload", "frame.comment")
    assert [(each["someip.payload"], each["frame.comment"]) for each in packets] == [
        (each.payload.hex(), each.id) for each in speeds
    ]


def test_an_mcap_file_is_read_by_its_own_library(drive: Drive, tmp_path: Path) -> None:
    reader = pytest.importorskip("mcap.reader")
    path = tmp_path / "drive.mcap"
    assert main(["export", str(drive.lake), str(path), "--format", "mcap"]) == 0
    expected = sorted(read_messages(str(drive.lake)), key=lambda each: each.time_us)
    with path.open("rb") as file:
        found = list(reader.make_reader(file).iter_messages())
    assert [message.log_time // 1_000 for _, _, message in found] == [each.time_us for each in expected]
    speeds = [
        json.loads(message.data)["speed"]
        for _, channel, message in found
        if channel.topic == "/hpc.vin1/chassis/1234/1/8001"
    ]
    assert speeds == [each.signals[0][1] for each in expected if each.topic == SPEED]
    assert {(schema.encoding, channel.message_encoding) for schema, channel, _ in found} == {
        ("jsonschema", "json")
    }


def test_a_lake_without_payloads_is_an_error_in_each_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcap")
    for each in export.FORMATS:
        assert main(["export", str(tmp_path), str(tmp_path / "out"), "--format", each]) == 69
        assert "no payloads" in capsys.readouterr().err


@pytest.mark.parametrize("form", export.FORMATS)
def test_a_full_disk_is_one_line(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcap")
    monkeypatch.setattr("ustreamer_pipeline.export.messages.read_messages", lambda *_: iter(MESSAGES))
    assert main(["export", "lake", "/dev/full", "--format", form]) == 69
    assert "/dev/full: the file is not complete: [Errno 28]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--topic", "//chassis/*/1/8001"], 2, "--topic //chassis/*/1/8001"),
        (["--since", "yesterday"], 2, "--since yesterday"),
    ],
)
def test_a_wrong_export_is_one_line(
    arguments: list[str], code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(tmp_path), str(tmp_path / "out.csv"), "--format", "csv"]
    assert main([*command, *arguments]) == code
    assert text in capsys.readouterr().err


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mcap.writer", None)
    with pytest.raises(UnavailableError, match=r"ustreamer-pipeline\[mcap\]"):
        write_mcap(iter(MESSAGES), tmp_path / "drive.mcap")
