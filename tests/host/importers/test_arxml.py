# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import arxml`: manifests of the Adaptive Platform, system descriptions of the Classic Platform."""

import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.host.cli.main import ExitCode, main
from ustreamer.host.importers.arxml.importer import import_files
from ustreamer.host.importers.catalogue import CatalogueOptions
from ustreamer.uprotocol.ustatus import UCode, UStatusError

FOLDER: Final = Path(__file__).with_name("arxml")
ADAPTIVE, CLASSIC = FOLDER / "adaptive.arxml", FOLDER / "classic.arxml"
ANY: Final = CatalogueOptions(bind="10.0.0.1")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], list[str]]:
    """The TOML and the lines about omissions of the command."""
    assert main(["import", "arxml", *map(str, arguments)]) == ExitCode.OK
    output = capsys.readouterr()
    return tomllib.loads(output.out), output.err.splitlines()


def failure(*paths: Path, **options: Any) -> str:
    with pytest.raises(UStatusError) as caught:
        import_files(paths, CatalogueOptions(**options))
    assert caught.value.code is UCode.INVALID_ARGUMENT
    return caught.value.message


def edited(path: Path, tmp_path: Path, *changes: tuple[str, str]) -> Path:
    content = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in content
        content = content.replace(old, new)
    copy = tmp_path / path.name
    copy.write_text(content, encoding="utf-8")
    return copy


# --- the Adaptive Platform --------------------------------------------------------------------------------------------


def test_services_of_machines_become_services_of_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    toml, _ = run(capsys, ADAPTIVE, "--bind", "10.0.0.1", "--endpoint", "chassis")
    endpoint = toml["endpoints"]["chassis"]
    assert (endpoint["bind"], endpoint["sd"]) == (
        "10.0.0.1",
        {"multicast": "239.192.255.251", "port": 30_490, "interface": "10.0.0.1"},
    )
    [service] = endpoint["services"]
    assert (service["service"], service["instance"], service["major"]) == (0x1234, 3, 2)
    events = {each["id"]: each for each in service["events"]}
    e2e = {"profile": "P04", "data_id": 16_777_261, "max_delta_counter": 10}
    assert events == {
        0x8001: {"id": 0x8001, "eventgroup": 1, "e2e": e2e},
        0x8002: {"id": 0x8002, "eventgroup": 2, "protocol": "tcp"},
        0x8003: {"id": 0x8003, "eventgroup": 1, "field": True},
    }
    assert service["methods"] == [{"id": 1, "no_return": True}, 0x10, {"id": 0x11, "protocol": "tcp"}]


def test_the_streamer_takes_the_part_of_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    toml, _ = run(capsys, ADAPTIVE, "--ecu", "ChassisEcu", "--authority", "hpc.vin1")
    endpoint = toml["endpoints"]["vehicle"]
    assert (endpoint["bind"], endpoint["port"], endpoint["port_tcp"]) == ("10.0.0.2", 30_501, 30_502)
    [service] = endpoint["services"]
    assert (service["offered"], service["provider"], service["minor"]) == (True, "//hpc.vin1/31234/2/0", 7)
    assert service["eventgroups"] == [{"id": 1, "multicast": "239.1.1.1:30600", "threshold": 2}]
    state = next(each for each in service["events"] if each["id"] == 0x8001)
    assert state["tp"] == {"segment_bytes": 1_392, "separation_us": 2_000}
    assert [each["topic"] for each in toml["plugins"]["payloads"]["topics"]] == [
        "//hpc.vin1/31234/2/8003",
        "//hpc.vin1/31234/2/8001",
    ]


def test_types_become_payload_types_with_names_and_units(capsys: pytest.CaptureFixture[str]) -> None:
    toml, _ = run(capsys, ADAPTIVE, "--bind", "10.0.0.1")
    types = toml["plugins"]["payloads"]["types"]
    assert types["ChassisState"]["members"] == [
        {"name": "speed", "type": "f32", "unit": "m/s"},
        {"name": "gear", "type": "Gear"},
        {"name": "wheels", "type": "Wheels"},
        {"name": "raw", "type": "Bytes"},
        {"name": "driver", "type": "string"},
    ]
    assert types["Gear"] == {"kind": "enum", "of": "u8", "values": {"park": 0, "drive": 3}}
    assert types["Wheels"] == {"kind": "array", "of": "f32", "count": 4}
    assert types["Bytes"] == {"kind": "array", "of": "u8"}


@pytest.mark.parametrize(
    "arguments", [(ADAPTIVE, "--ecu", "ChassisEcu"), (ADAPTIVE, CLASSIC, "--bind", "127.0.0.1")]
)
def test_check_accepts_the_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[object, ...]
) -> None:
    assert main(["import", "arxml", *map(str, arguments)]) == ExitCode.OK
    file = tmp_path / "made.toml"
    file.write_text(capsys.readouterr().out + "\n[plugins.usubscription]\n", encoding="utf-8")
    assert main(["check", "--offline", str(file)]) == ExitCode.OK
    warnings = capsys.readouterr().err.splitlines()
    assert [each for each in warnings if "warning: no access rules" not in each] == []


@pytest.mark.parametrize(
    "line",
    [
        "/vehicle/Chassis_1, LOAD-BALANCING-PRIORITY: options of Offers are not configurable",
        "/vehicle/E2E/P4, MIN-OK-STATE-VALID: not carried over",
        "/services/Chassis/faults: its payload type is left out: /types/Map: category ASSOCIATIVE_MAP has no description",
        "/vehicle/Chassis_1, event group 0x0001: its multicast address: the ECU announces it in the acknowledgement",
    ],
)
def test_what_is_left_out_is_named_with_the_reason(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert line in run(capsys, ADAPTIVE, "--bind", "10.0.0.1")[1]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "<PROFILE-NAME>PROFILE_04<",
            "<PROFILE-NAME>PROFILE_22<",
            "PROFILE-NAME: 'PROFILE_22': expected profile 1, 4",
        ),
        (
            "<DATA-ID>16777261</DATA-ID>",
            "<DATA-ID>1</DATA-ID><DATA-ID>2</DATA-ID>",
            "DATA-IDS: 2 of them, expected one",
        ),
        ("<EVENT-ID>32769<", "<EVENT-ID>1<", "left out: Expected `int` >= 32768"),
        (
            "Chassis_SomeIp</SERVICE-INTERFACE-D",
            "Gone</SERVICE-INTERFACE-D",
            "/services/Gone: expected the path of a deployment",
        ),
        (
            "/vehicle/Chassis_1</SERVICE-INSTANCE-REF>",
            "/vehicle/Gone</SERVICE-INSTANCE-REF>",
            "/vehicle/Gone is in no file",
        ),
        (
            "/types/ChassisState</TYPE-TREF>",
            "/types/Gone</TYPE-TREF>",
            "its type is in no file: no payload type",
        ),
    ],
)
def test_an_invalid_part_is_left_out_with_its_place(tmp_path: Path, old: str, new: str, line: str) -> None:
    try:
        outcome = "\n".join(import_files([edited(ADAPTIVE, tmp_path, (old, new))], ANY).left_out)
    except UStatusError as error:
        outcome = error.message
    assert line in outcome


# --- the Classic Platform ---------------------------------------------------------------------------------------------


def test_ids_of_a_classic_ecu_come_from_the_header_ids_of_its_pdus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    toml, left_out = run(capsys, CLASSIC, "--ecu", "Doors")
    endpoint = toml["endpoints"]["vehicle"]
    assert (endpoint["bind"], endpoint["port"]) == ("10.0.0.3", 30_503)
    [service] = endpoint["services"]
    assert (service["service"], service["major"], service["minor"]) == (0x2001, 1, 4)
    assert service["events"] == [
        {"id": 0x8001, "eventgroup": 7},
        {"id": 0x8002, "eventgroup": 7, "protocol": "tcp"},
    ]
    assert service["methods"] == [1]
    place = "/ecus/Net/Vlan5/DoorsUdp/Doors/Doors"
    assert f"{place}/Methods: HEADER-ID 0x30010001 is of another service" in left_out
    assert f"{place}/Methods: /ecus/Ids/Nowhere has no HEADER-ID in the files" in left_out
    assert any(line.startswith(f"{place}/Empty: no PDU of event group 0x0008") for line in left_out)
    assert f"{place}, events: the types of I-signals are not carried over: no payload types" in left_out


def test_files_are_read_together(capsys: pytest.CaptureFixture[str]) -> None:
    toml, _ = run(capsys, ADAPTIVE, CLASSIC, "--ecu", "Doors")
    first, second = toml["endpoints"]["vehicle"]["services"]
    assert (first["service"], "offered" in first) == (0x1234, False)
    assert (second["service"], second["offered"]) == (0x2001, True)


# --- invalid input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "invalid AUTOSAR file"),
        (b"hello", "invalid AUTOSAR file"),
        (b"\xff\xfe", "byte 0: not UTF-8, the encoding of AUTOSAR files"),
        (b'<?xml version="1.0" encoding="utf-8"?>\n<AUTOSAR', "on line 2"),
    ],
)
def test_a_file_that_is_no_arxml_is_refused_with_its_place(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    file = tmp_path / "a.arxml"
    file.write_bytes(content)
    assert failure(file).startswith(f"{file}: ")
    assert expected in failure(file)


def test_files_without_a_deployed_service_are_refused(tmp_path: Path) -> None:
    file = edited(CLASSIC, tmp_path)
    content = file.read_text(encoding="utf-8")
    begin, end = "<SO-AD-CONFIG>", "</SO-AD-CONFIG>"
    file.write_text(
        content[: content.index(begin)] + content[content.index(end) + len(end) :], encoding="utf-8"
    )
    assert (
        "no service is deployed over SOME/IP; expected a valid PROVIDED-SOMEIP-SERVICE-INSTANCE"
        in failure(file)
    )


def test_an_unknown_ecu_is_refused_with_the_known_ones() -> None:
    assert failure(ADAPTIVE, CLASSIC, ecu="Roof") == (
        "--ecu Roof: it provides no service; expected one of: ChassisEcu, Doors"
    )


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(UStatusError, match="No such file") as caught:
        import_files([tmp_path / "gone.arxml"], ANY)
    assert caught.value.code is UCode.NOT_FOUND


def test_an_instruction_without_a_name_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.arxml"
    file.write_text(ADAPTIVE.read_text(encoding="utf-8").replace("\n", "\n<?>", 1), encoding="utf-8")
    with pytest.raises(UStatusError, match=r"a\.arxml: line 2: <\?> is no XML"):
        import_files([file], ANY)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([ADAPTIVE, CLASSIC]), st.data())
def test_any_damage_gives_a_result_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, original: Path, data: st.DataObject
) -> None:
    content = bytearray(original.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        length = data.draw(st.integers(0, 40))
        content[at : at + length] = data.draw(
            st.binary(max_size=6) | st.sampled_from([b"<", b">", b"0x", b"-1"])
        )
    file = tmp_path_factory.mktemp("damaged") / "a.arxml"
    file.write_bytes(bytes(content))
    with suppress(UStatusError):
        import_files([file], ANY)
