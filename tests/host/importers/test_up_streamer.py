# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import up-streamer`: the conversion of a CONFIG.json5, and the JSON5 reader."""

import json
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.host.cli import check
from ustreamer.host.cli.main import ExitCode, main
from ustreamer.host.importers.json5 import LIMIT_DEPTH, Json5Error, parse
from ustreamer.host.importers.up_streamer import LIMIT_BYTES, MqttSettings, import_file, toml_text
from ustreamer.uprotocol.ustatus import UStatusError

CONFIG = """\
{
  // how many messages may wait
  up_streamer_config: { message_queue_size: 10000, },
  streamer_uuri: { authority: "authority-a", ue_id: 0xFF, ue_version_major: 1 },
  /* subscriptions */
  usubscription_config: { mode: 'static_file', file_path: "subscription_data.json" },
  transports: {
    zenoh: {
      config_file: "ZENOH_CONFIG.json5",
      endpoints: [
        { authority: "authority-a", endpoint: "endpoint-1", forwarding: ["endpoint-2", "endpoint-3"] },
        { authority: "authority-b", endpoint: "endpoint-2", forwarding: [] },
        { authority: "authority-b", endpoint: "endpoint-2b", forwarding: [] },
      ],
    },
    mqtt: {
      config_file: "MQTT_CONFIG.json5",
      endpoints: [ { authority: "authority-c", endpoint: "endpoint-3", forwarding: ["endpoint-1"] } ],
    },
  },
  someip_config: { authority: "me", config_file: "vsomeip.json", enabled: true },
}
"""


MQTT = """\
{ hostname: "broker.example", port: 1884, max_buffered_messages: 100, max_subscriptions: 100,
  session_expiry_interval: 3600, username: "user" }
"""
EXAMPLE_STREAMER = """\
{
  up_streamer_config: { message_queue_size: 500 },
  streamer_uuri: { authority: "authority-b", ue_id: 78, ue_version_major: 1 },
  usubscription_config: { file_path: "../subscription_data.json" },
  zenoh_transport_config: { config_file: "../ZENOH_CONFIG.json5" },
  host_config: { transport: "Zenoh" },
  mqtt_config: { authority: "authority-a", hostname: "localhost", port: 1883, username: "" },
  someip_config: { authority: "authority-a", config_file: "vsomeip.json" },
}
"""
ROUTER_PLUGIN = """\
{ plugins: { up_linux_streamer: {
  __required__: true,
  host_config: { transport: "Zenoh", authority: "linux" },
  zenoh_transport_config: {},
} } }
"""


def written(tmp_path: Path, text: str | bytes) -> Path:
    (tmp_path / "MQTT_CONFIG.json5").write_text(MQTT, encoding="utf-8")
    path = tmp_path / "CONFIG.json5"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_zenoh_section_is_imported(tmp_path: Path) -> None:
    found = import_file(written(tmp_path, CONFIG))
    assert (found.authority, found.queue_messages) == ("authority-a", 10_000)
    assert found.authorities == ("authority-a", "authority-b")
    assert found.zenoh == tmp_path / "ZENOH_CONFIG.json5"


def test_an_omitted_setting_is_reported_with_its_place(tmp_path: Path) -> None:
    places = [line.split(": ")[0] for line in import_file(written(tmp_path, CONFIG)).left_out]
    assert places == [
        "streamer_uuri.ue_id",
        "streamer_uuri.ue_version_major",
        "transports.zenoh.endpoints[0].forwarding",
        "transports.mqtt.endpoints[0].forwarding",
        "transports.mqtt.max_buffered_messages",
        "transports.mqtt.max_subscriptions",
        "usubscription_config.file_path",
        "someip_config",
    ]


def test_the_written_configuration_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, CONFIG)
    assert main(["import", "up-streamer", str(path), "--endpoint", "core"]) == ExitCode.OK
    out, err = capsys.readouterr()
    config = tmp_path / "ours.toml"
    config.write_text(out, encoding="utf-8")
    assert check.check(config, offline=True).problems == ()
    read = tomllib.loads(out)
    assert read["endpoints"]["core"]["authorities"] == ["authority-a", "authority-b"]
    assert read["egress"]["default"]["queue_messages"] == 10_000
    assert read["endpoints"]["mqtt"] == {
        "transport": "mqtt",
        "authorities": ["authority-c"],
        "broker": "mqtt://broker.example:1884",
        "username": "user",
        "session_expiry_s": 3_600,
    }
    assert [line for line in err.splitlines() if line.startswith(f"{path}: ")] == [
        f"{path}: {line}" for line in import_file(path).left_out
    ]


def test_without_a_zenoh_file_the_endpoint_listens_on_loopback(tmp_path: Path) -> None:
    text = CONFIG.replace('config_file: "ZENOH_CONFIG.json5",', "").replace("message_queue_size: 10000,", "")
    found = import_file(written(tmp_path, text))
    made = tomllib.loads(toml_text("core", found, "x\n[evil]"))
    assert made["endpoints"]["core"]["listen"] == ["tcp/127.0.0.1:7447"]
    assert set(made) == {"authority", "endpoints", "plugins"}


def test_the_configuration_of_an_example_streamer_is_imported(tmp_path: Path) -> None:
    found = import_file(written(tmp_path, EXAMPLE_STREAMER))
    assert (found.authority, found.authorities, found.queue_messages) == (
        "authority-b",
        ("authority-b",),
        500,
    )
    assert found.zenoh == tmp_path / "../ZENOH_CONFIG.json5"
    assert found.mqtt == MqttSettings(("authority-a",), "mqtt://localhost:1883", None, 0)
    config = tmp_path / "ours.toml"
    config.write_text(toml_text("core", found, "x"), encoding="utf-8")
    assert check.check(config, offline=True).problems == ()
    assert [each.split(": ")[0] for each in found.left_out] == [
        "streamer_uuri.ue_id",
        "streamer_uuri.ue_version_major",
        "usubscription_config.file_path",
        "someip_config",
    ]


@pytest.mark.parametrize("setting", ["zenoh_transport_config: {},", ""])
def test_the_configuration_of_the_plugin_of_the_zenoh_router_is_imported(
    tmp_path: Path, setting: str
) -> None:
    found = import_file(written(tmp_path, ROUTER_PLUGIN.replace("zenoh_transport_config: {},", setting)))
    assert (found.authority, found.authorities, found.zenoh, found.mqtt) == ("linux", ("linux",), None, None)
    assert found.left_out == ("__required__: a setting of the Zenoh router",)


def test_an_authority_behind_two_transports_stays_with_zenoh(tmp_path: Path) -> None:
    found = import_file(written(tmp_path, CONFIG.replace("authority-c", "authority-b")))
    assert found.mqtt is None
    assert any(each.startswith("transports.mqtt: an authority") for each in found.left_out)


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [("hostname", '"a b"'), ("hostname", "5"), ("port", "0"), ("port", "70000"), ("port", "true")],
)
def test_a_broker_without_an_address_is_refused(tmp_path: Path, setting: str, wrong: str) -> None:
    path = written(tmp_path, CONFIG)
    (tmp_path / "MQTT_CONFIG.json5").write_text(f"{{{setting}: {wrong}}}", encoding="utf-8")
    with pytest.raises(UStatusError, match="expected hostname and port"):
        import_file(path)


def test_a_missing_file_of_mqtt_is_not_found(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIG)
    (tmp_path / "MQTT_CONFIG.json5").unlink()
    with pytest.raises(UStatusError, match="MQTT_CONFIG"):
        import_file(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", ":1: not JSON5: 'the end': expected a key or }"),
        ("[]", "expected an object"),
        (b"\xff", "not UTF-8"),
        ("{}", "streamer_uuri.authority: None: expected an authority"),
        ("{streamer_uuri: 5}", "streamer_uuri: expected an object"),
        ("{streamer_uuri: {authority: '*'}}", "streamer_uuri.authority: '*': expected an authority"),
        ("{streamer_uuri: {authority: 'a'}}", "transports.zenoh.endpoints: none with an authority"),
        (
            "{streamer_uuri: {authority: 'a'}, transports: {zenoh: {endpoints: {}}}}",
            "transports.zenoh.endpoints: expected an array",
        ),
        (" " * (LIMIT_BYTES + 1), f"more than {LIMIT_BYTES} bytes"),
    ],
)
def test_a_file_of_which_nothing_can_be_made_is_refused(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    with pytest.raises(UStatusError) as refused:
        import_file(written(tmp_path, text))
    assert problem in refused.value.message


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(UStatusError, match="No such file"):
        import_file(tmp_path / "none")


@pytest.mark.parametrize(
    ("endpoints", "line"),
    [
        ("[5]", "transports.zenoh.endpoints[0]: authority None: left out"),
        ("[{authority: 'A B'}]", "transports.zenoh.endpoints[0]: authority 'A B': left out"),
    ],
)
def test_an_invalid_endpoint_is_left_out(tmp_path: Path, endpoints: str, line: str) -> None:
    good = "{authority: 'b'}"
    text = f"{{streamer_uuri: {{authority: 'a'}}, transports: {{zenoh: {{endpoints: {endpoints[:-1]}, {good}]}}}}}}"
    found = import_file(written(tmp_path, text))
    assert found.authorities == ("b",)
    assert any(each.startswith(line) for each in found.left_out)


@pytest.mark.parametrize("size", ["0", "-1", "1e3", "'x'", "true"])
def test_an_invalid_queue_size_is_left_out(tmp_path: Path, size: str) -> None:
    found = import_file(written(tmp_path, CONFIG.replace("10000", size)))
    assert found.queue_messages is None
    assert any(each.startswith("up_streamer_config.message_queue_size") for each in found.left_out)


# --- JSON5 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ("[1, 2,]", [1, 2]),
        ("{a: 1, 'b': 2, \"c\": 3,}", {"a": 1, "b": 2, "c": 3}),
        ("// x\n[/* y\n */ 0x1F, -2, +3, .5, 5., 1e3]", [31, -2, 3, 0.5, 5.0, 1000.0]),
        (
            r"""['it\'s', "\u00e9\x41\n", 'a"b', "a\
b"]""",
            ["it's", "éA\n", 'a"b', "ab"],
        ),
        ("[true, false, null]", [True, False, None]),
        ("{$a_1: {}}", {"$a_1": {}}),
    ],
)
def test_json5_extensions_are_read(text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: 'the end': expected a value"),
        ("\n\n[1 2]", "line 3: '2': expected , or ]"),
        ("{a 1}", "expected : behind the key 'a'"),
        ("{1: 2}", "'1': expected a key or }"),
        ("[maybe]", "'maybe': expected a value"),
        ("'a\nb'", "a string does not end on its line"),
        ("'a", "a string does not end on its line"),
        (r"'\u12'", "expected 4 hexadecimal digits"),
        ("{} {}", "more behind the end"),
        ("/* [1]", "expected a value"),
        ("[" * (LIMIT_DEPTH + 2), f"deeper than {LIMIT_DEPTH}"),
        ("-", "'-': expected a value"),
    ],
)
def test_invalid_json5_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(Json5Error) as refused:
        parse(text)
    assert problem in str(refused.value)


@settings(max_examples=30)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**20), 10**20)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
        max_leaves=20,
    ),
    st.sampled_from([None, 2]),
)
def test_all_json_is_json5(value: Any, indent: int | None) -> None:
    assert parse(json.dumps(value, indent=indent)) == json.loads(json.dumps(value))


@settings(max_examples=60)
@given(st.text(alphabet="{}[]:,'\"/*\\ \nax1.e-u", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(Json5Error):
        parse(text)
