# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import fidl`: Franca interfaces and their SOME/IP deployment."""

import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ustreamer.host.cli.main import ExitCode, main
from ustreamer.host.importers.catalogue import CatalogueOptions
from ustreamer.host.importers.fidl.deployments import parse_deployment
from ustreamer.host.importers.fidl.importer import import_files
from ustreamer.host.importers.fidl.interfaces import parse_interfaces
from ustreamer.host.importers.fidl.tokens import Tokens
from ustreamer.uprotocol.ustatus import UCode, UStatusError

FOLDER: Final = Path(__file__).with_name("fidl")
DEPLOYMENT: Final = FOLDER / "chassis.fdepl"
PARSERS: Final = {".fidl": parse_interfaces, ".fdepl": parse_deployment}


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    """The TOML and the lines about omissions of the command."""
    assert main(["import", "fidl", *map(str, arguments)]) == ExitCode.OK
    output = capsys.readouterr()
    return tomllib.loads(output.out), output.err


def parse_error(name: str, text: str) -> str:
    """The message about a mistake in a file."""
    with pytest.raises(UStatusError) as caught:
        PARSERS[Path(name).suffix](Tokens(name, text))
    assert caught.value.code is UCode.INVALID_ARGUMENT
    return caught.value.message


def test_deployed_interfaces_become_services_of_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    toml, _ = run(capsys, DEPLOYMENT, "--bind", "10.0.0.1")
    [service] = toml["endpoints"]["vehicle"]["services"]
    assert (service["service"], service["instance"], service["major"]) == (0x1234, 3, 2)
    assert service["events"] == [
        {"id": 0x8003, "eventgroup": [1, 3], "field": True},
        {"id": 0x8004, "eventgroup": 4, "field": True},
        {"id": 0x8001, "eventgroup": 1},
        {"id": 0x8002, "eventgroup": 2, "protocol": "tcp"},
    ]
    assert service["methods"] == [16, {"id": 17, "protocol": "tcp"}, 1, {"id": 2, "no_return": True}]


def test_the_streamer_takes_the_part_of_a_provider(capsys: pytest.CaptureFixture[str]) -> None:
    toml, _ = run(capsys, DEPLOYMENT, "--ecu", "ChassisEcu")
    endpoint = toml["endpoints"]["vehicle"]
    assert (endpoint["bind"], endpoint["port"], endpoint["port_tcp"]) == ("10.0.0.2", 30_501, 30_502)
    [service] = endpoint["services"]
    assert (service["offered"], service["provider"], service["minor"]) == (True, "//gateway/31234/2/0", 1)


def test_types_become_payload_types(capsys: pytest.CaptureFixture[str]) -> None:
    toml, _ = run(capsys, DEPLOYMENT, "--bind", "10.0.0.1")
    payloads = toml["plugins"]["payloads"]
    assert {each["topic"]: each["type"] for each in payloads["topics"]} == {
        "//vehicle/31234/2/8003": "f32",
        "//vehicle/31234/2/8001": "Fix",
        "//vehicle/31234/2/8002": "state_arguments",
    }
    types = payloads["types"]
    assert [each["name"] for each in types["Fix"]["members"]] == ["latitude", "longitude", "satellites"]
    assert types["state_arguments"]["members"] == [
        {"name": "gear", "type": "Gear"},
        {"name": "speeds", "type": "Speeds"},
        {"name": "codes", "type": {"kind": "array", "of": "u16"}},
        {"name": "text", "type": "string"},
        {"name": "detail", "type": "Detail"},
    ]
    assert types["Gear"] == {"kind": "enum", "of": "u8", "values": {"PARK": 0, "REVERSE": 1, "DRIVE": 3}}
    assert types["Speeds"] == {"kind": "array", "of": "f32"}
    assert [each["id"] for each in types["Detail"]["variants"]] == [1, 2]


@pytest.mark.parametrize("arguments", [("--ecu", "ChassisEcu"), ("--bind", "127.0.0.1")])
def test_check_accepts_the_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert main(["import", "fidl", str(DEPLOYMENT), *arguments]) == ExitCode.OK
    file = tmp_path / "made.toml"
    file.write_text(capsys.readouterr().out + "\n[plugins.usubscription]\n", encoding="utf-8")
    assert main(["check", "--offline", str(file)]) == ExitCode.OK
    warnings = capsys.readouterr().err.splitlines()
    assert [each for each in warnings if "warning: no access rules" not in each] == []


@pytest.mark.parametrize(
    "line",
    [
        "chassis.fdepl:16:61: in: its properties are not carried over",
        f"chassis.fdepl:15:5: its payload type is left out: {FOLDER}/chassis.fidl:9:15: a map has no description",
        "chassis.fdepl:20:5: left out: org.example.Chassis has no broadcast gone",
        "chassis.fdepl:30:9: SomeIpLoad: not carried over",
    ],
)
def test_what_is_left_out_is_named_with_its_place(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert f"{FOLDER}/{line}" in run(capsys, DEPLOYMENT, "--bind", "10.0.0.1")[1].splitlines()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.fidl", "", "a.fidl:1:1: the end of the file, expected 'package'"),
        ("a.fidl", "package a\n  struct X {}", "a.fidl:2:3: 'struct', expected 'interface' or 'typeCollection'"),
        ("a.fidl", "package a interface I { attribute }", "a.fidl:1:35: '}', expected a type"),
        ("a.fidl", "package a interface I { attribute UInt8 }", "1:41: '}', expected the name of the attribute"),
        ("a.fidl", "package a interface I { field x }", "'field', expected 'attribute', 'method', 'broadcast', 'version', a type, or '}'"),
        ("a.fidl", "package a interface I { method m { in {", "expected '}' for the block at line 1"),
        ("a.fidl", "package a /* open", "a.fidl:1:11: '/', expected the end of the comment"),
        ("a.fidl", 'package a import "x', "a.fidl:1:18: '\"', expected a closing quote"),
        ("a.fidl", "package a\n\n  ?", "a.fidl:3:3: '?', expected a name, a number, a string or a sign such as '{'"),
        ("a.fidl", "package a typeCollection T { enumeration E { A = b } }", "1:50: 'b', expected a whole number"),
        ("a.fdepl", "define s for interface I { X = }", "a.fdepl:1:32: '}', expected a number, a string, true, false or a name"),
        ("a.fdepl", "define s for interface I { X 5 }", "1:30: '5', expected '=', '{', or the name of the X"),
        ("a.fdepl", "deploy", "a.fdepl:1:1: 'deploy', expected 'import', 'specification' or 'define'"),
        ("a.fdepl", "define s for interface I " + "{ a " * 40, "expected at most 32 blocks inside each other"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_line_column_and_what_is_right(name: str, text: str, message: str) -> None:
    assert message in parse_error(name, text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("= 0x1234", '= "many"'), "SomeIpServiceID = 'many', expected a number"),
        (("SomeIpInstanceID = 3", "SomeIpReliable = 3"), "SomeIpInstanceID: missing, expected a number"),
        (("SomeIpReliable = true", "SomeIpReliable = 5"), "SomeIpReliable = 5, expected true or false"),
        (("SomeIpServiceID = 0x1234", ""), "SomeIpServiceID: missing"),
        (("interface org.example.Chassis", "interface org.example.Roof"), "interface org.example.Roof is in no .fidl file"),
    ],
)  # fmt: skip
def test_without_a_valid_deployment_the_reasons_are_named(
    tmp_path: Path, changes: tuple[str, str], message: str
) -> None:
    for each in FOLDER.iterdir():
        (tmp_path / each.name).write_text(
            each.read_text(encoding="utf-8").replace(*changes), encoding="utf-8"
        )
    with pytest.raises(UStatusError) as caught:
        import_files([tmp_path / DEPLOYMENT.name], CatalogueOptions())
    assert message in caught.value.message


def test_an_interface_without_a_provider_has_instance_1(tmp_path: Path) -> None:
    text = DEPLOYMENT.read_text(encoding="utf-8")
    (tmp_path / "a.fdepl").write_text(
        text[: text.index("define", text.index("define") + 1)], encoding="utf-8"
    )
    imported = import_files(
        [tmp_path / "a.fdepl", FOLDER / "chassis.fidl"], CatalogueOptions(bind="10.0.0.1")
    )
    [service] = imported.endpoint.services
    assert service.instance == 1
    assert any(
        "no provider has an instance of it: instance 1 is assumed" in each for each in imported.left_out
    )


def test_a_file_of_another_kind_or_encoding_is_refused(tmp_path: Path) -> None:
    for name, content, message in (
        ("a.json", b"{}", "expected a file named"),
        ("a.fidl", b"\xff", "byte 0: not UTF-8"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UStatusError, match=message):
            import_files([tmp_path / name], CatalogueOptions())


WORDS: Final = st.sampled_from(
    [
        "package",
        "interface",
        "typeCollection",
        "version",
        "major",
        "minor",
        "attribute",
        "method",
        "broadcast",
        "struct",
        "enumeration",
        "array",
        "typedef",
        "union",
        "map",
        "const",
        "import",
        "from",
        "model",
        "define",
        "for",
        "provider",
        "as",
        "instance",
        "in",
        "out",
        "of",
        "is",
        "to",
        "extends",
        "a.b",
        "UInt8",
        "x",
        "{",
        "}",
        "{",
        "}",
        "[",
        "]",
        "=",
        ",",
        ":",
        "(",
        ")",
        "1",
        "0x8001",
        '"s"',
        "SomeIpServiceID",
        "^y",
        "//",
        "/*",
        "*/",
        "<**",
        "**>",
        "\n",
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(PARSERS)), st.lists(WORDS, max_size=40).map(" ".join) | st.text(max_size=60))
@example(".fidl", "package a interface I { const UInt8 x =")
@example(".fidl", "package a typeCollection { const UInt8 x = {")
@example(".fidl", "package a interface I { attribute Integer(")
def test_any_text_is_parsed_or_refused_with_its_place(suffix: str, text: str) -> None:
    error = None
    try:
        PARSERS[suffix](Tokens("f", text))
    except UStatusError as raised:
        error = raised
    assert error is None or error.code is UCode.INVALID_ARGUMENT
    assert error is None or re.match(r"f:\d+:\d+: .*, expected ", error.message, re.DOTALL)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(FOLDER.iterdir())), st.data())
def test_any_damage_gives_a_result_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, damaged: Path, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    for each in FOLDER.iterdir():
        (folder / each.name).write_bytes(each.read_bytes())
    content = bytearray(damaged.read_bytes())
    at, length = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 30))
    content[at : at + length] = data.draw(
        st.binary(max_size=4) | st.sampled_from([b"{", b"}", b"-1", b"true"])
    )
    (folder / damaged.name).write_bytes(bytes(content))
    with suppress(UStatusError):
        import_files([folder / DEPLOYMENT.name], CatalogueOptions())
