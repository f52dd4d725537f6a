# SPDX-License-Identifier: Apache-2.0
"""`ustreamer check`: the stages a configuration passes, and the problems of the last stage."""

import os
import socket
from pathlib import Path

import pytest
from ustreamer_usubscription.plugin import UsubscriptionPlugin

from tests.e2e.rigs.ports import tcp_ports
from tests.host.running_streamer import RunningStreamer
from ustreamer.host.admin.server import SOCKET
from ustreamer.host.cli.check import CheckReport, check, render
from ustreamer.host.config.document import Problem
from ustreamer.host.storage.state_lock import StateLock
from ustreamer.uprotocol.ustatus import UCode, UStatusError

HEAD = 'authority = "hpc"\nstate_dir = "state"\n'
LOCAL = '[endpoints.a]\ntransport = "local"\nnetwork = "check"\nauthorities = ["hpc"]\n'
SOMEIP = """\
[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "{bind}"
port = 30500
sd = false
"""
OURS, NOT_OURS = "127.0.30.41", "192.0.2.1"  # no other test binds the first; RFC 5737 reserves the second


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ustreamer.toml"
    path.write_text(HEAD + LOCAL, encoding="utf-8")
    return path


def add(config: Path, text: str) -> Path:
    config.write_text(config.read_text(encoding="utf-8") + text, encoding="utf-8")
    return config


# --- valid configurations --------------------------------------------------------------------------------------------


def test_a_valid_configuration_passes_three_stages_and_the_report_summarizes_it(config: Path) -> None:
    add(config, SOMEIP.format(bind=OURS) + "[plugins.throttle]\n[plugins.usubscription]\n")
    assert check(config, offline=False) == CheckReport(
        file=str(config),
        stages=("file", "routes", "environment"),
        authority="hpc",
        serves=("hpc", "chassis"),
        endpoints=("a", "chassis"),
        plugins=("throttle", "usubscription"),
    )


def test_offline_skips_the_environment(config: Path) -> None:
    add(config, SOMEIP.format(bind=NOT_OURS))
    report = check(config, offline=True)
    assert (report.stages, report.problems) == (("file", "routes"), ())


def test_a_check_touches_nothing(config: Path) -> None:
    add(config, SOMEIP.format(bind=OURS) + "[plugins.usubscription]\n")
    before = config.read_bytes()
    for _ in range(2):
        assert check(config, offline=False).problems == ()
    assert [path.name for path in config.parent.iterdir()] == ["ustreamer.toml"]
    assert config.read_bytes() == before


# --- invalid configurations ------------------------------------------------------------------------------------------


def test_problems_are_printed_one_per_line_with_line_numbers(
    config: Path,
) -> None:
    add(config, "colour = 1\n[plugins.trottle]\n")
    report = check(config, offline=False)
    assert report.stages == ()
    assert [str(problem).split(": ")[0] for problem in report.problems] == [
        f"{config}:{place}" for place in ("7:1", "8:1")
    ]
    assert report.problems[0].path == "endpoints.a.colour"
    assert report.problems[1].suggestion == "did you mean 'throttle'?"


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    report = check(tmp_path / "none.toml", offline=False)
    assert report.stages == ()
    [problem] = report.problems
    assert "none.toml" in str(problem)


def test_a_pipe_without_a_writer_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    [problem] = check(tmp_path / "pipe.toml", offline=False).problems
    assert "is no regular file" in str(problem)


def test_a_plugin_that_cannot_be_loaded_is_a_problem(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "plug-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ustreamer]\nradar = no_such_module:Plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    add(config, "[plugins.radar]\n")
    report = check(config, offline=False)
    assert report.stages == ()
    assert str(report.problems[0]).startswith(
        f"{config}:7:1: plugins.radar: cannot load 'no_such_module:Plugin'"
    )


def test_a_plugin_config_error_is_a_problem_of_the_second_stage(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UStatusError(UCode.UNIMPLEMENTED, "plugins.usubscription.topic_lifecycle: not on this machine")

    monkeypatch.setattr(UsubscriptionPlugin, "__init__", refuse)
    add(config, '[plugins.usubscription]\ntopic_lifecycle = "track"\n')
    report = check(config, offline=False)
    assert report.stages == ("file",)
    [problem] = report.problems
    assert str(problem).startswith(f"{config}: ")
    assert "topic_lifecycle" in str(problem)


def test_a_pattern_that_a_plugin_cannot_read_is_a_problem_with_its_line(config: Path) -> None:
    add(config, '[plugins.throttle]\nlatest = ["//chassis/1234"]\n')
    report = check(config, offline=False)
    assert report.stages == ()
    [problem] = report.problems
    assert str(problem).startswith(f"{config}:8:11: ")
    assert "//chassis/1234" in str(problem)


TOPIC = '[[plugins.payloads.topics]]\ntopic = "//hpc/1/1/8001"\n'
WHEEL = """
[plugins.payloads.types.Wheel]
kind = "struct"
members = [
    { name = "speed", type = "f33" },
]
"""


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        (WHEEL, "11:23", "types.Wheel.members[0].type: there is no type 'f33' (did you mean 'f32'?)"),
        (WHEEL.replace('"struct"', '"strukt"'), "9:1", "types.Wheel.kind: 'strukt' is not one of: 'struct', 'tlv', 'array'"),
        (TOPIC + 'type = "u8"\n' + TOPIC + 'type = "u8"\n', "11:1", "topics[1].topic: what is published on up://hpc/1/1/8001"),
        (TOPIC + 'type = "u8"\nklass = 1\n', "10:1", "topics[0].klass: unknown key (have: class, topic, type); did you mean 'class'?"),
    ],
)  # fmt: skip
def test_a_payload_that_is_described_wrongly_is_a_problem_with_its_line(
    config: Path, text: str, place: str, problem: str
) -> None:
    [found] = check(add(config, text), offline=True).problems
    assert str(found).startswith(f"{config}:{place}: plugins.payloads.{problem}")


def test_a_payload_class_that_cannot_be_imported_is_a_problem_of_the_second_stage(config: Path) -> None:
    report = check(add(config, TOPIC + 'class = "no_such_payloads:Wheel"\n'), offline=True)
    assert report.stages == ("file",)
    [problem] = report.problems
    assert str(problem).startswith(
        f"{config}:9:1: plugins.payloads.topics[0].class: cannot import 'no_such_payloads': "
    )
    assert str(problem).endswith("ModuleNotFoundError: No module named 'no_such_payloads'")


def test_an_address_that_this_machine_has_not_is_a_problem_of_the_environment(config: Path) -> None:
    add(config, SOMEIP.format(bind=NOT_OURS))
    report = check(config, offline=False)
    assert report.stages == ("file", "routes")
    [problem] = report.problems
    assert str(problem).startswith(f"{config}:10:1: endpoints.chassis.bind: cannot bind UDP")
    assert NOT_OURS in str(problem)


def test_a_check_does_not_create_the_state_directory(config: Path) -> None:
    config.write_text(config.read_text().replace('"state"', '"a/b/c"'))
    assert check(config, offline=False).problems == ()
    (config.parent / "a").mkdir()
    assert check(config, offline=False).problems == ()


@pytest.mark.parametrize("state_dir", ["file", "file/below/it"])
def test_a_state_directory_that_cannot_be_is_a_problem_of_the_environment(
    config: Path, state_dir: str
) -> None:
    (config.parent / "file").touch(0o755)  # otherwise it would be unwritable for another reason
    config.write_text(config.read_text().replace('"state"', f'"{state_dir}"'))
    report = check(config, offline=False)
    assert report.stages == ("file", "routes")
    [problem] = report.problems
    assert str(problem).startswith(f"{config}:2:1: state_dir: {config.parent / state_dir} ")
    assert str(problem).endswith(f"{config.parent}/file is a file: expected a directory")


@pytest.mark.parametrize(
    ("state_dir", "problem"),
    [
        ("n" * 256, "the name nnnnnnnnnnnnnnnnnnnn... has 256 bytes: expected at most 255"),
        ("new/" + "é" * 128, "has 256 bytes: expected at most 255"),
        ("directory/" * 410, "bytes: expected at most 4095"),
    ],
)
def test_a_state_directory_with_a_name_that_is_too_long_is_a_problem(
    config: Path, state_dir: str, problem: str
) -> None:
    config.write_text(config.read_text().replace('"state"', f'"{state_dir}"'), encoding="utf-8")
    [found] = check(config, offline=False).problems
    assert str(found).startswith(f"{config}:2:1: state_dir: ")
    assert problem in str(found)
    with pytest.raises(UStatusError, match=problem):
        StateLock(config.parent / state_dir).acquire()


def test_an_unwritable_state_directory_is_a_problem(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config.parent / "state").mkdir()

    def denied(path: Path, mode: int, **_: bool) -> bool:
        return mode == os.F_OK

    monkeypatch.setattr(os, "access", denied)  # root, in containers, may write anywhere
    [problem] = check(config, offline=False).problems
    assert f"{config.parent}/state has owner" in str(problem)


def test_a_setting_that_this_machine_refuses_is_reported_at_its_key(config: Path) -> None:
    add(
        config,
        SOMEIP.format(bind=OURS)
        + 'interface = "nope0"\n'
        + f'[endpoints.backbone]\ntransport = "zenoh"\nauthorities = ["ivi"]\nconfig = "{config.parent}"\n',
    )
    assert [problem.path for problem in check(config, offline=False).problems] == [
        "endpoints.chassis.interface",
        "endpoints.backbone.config",
    ]


def test_all_problems_of_the_environment_are_reported(config: Path) -> None:
    (config.parent / "state").touch()
    add(config, SOMEIP.format(bind=NOT_OURS))
    assert [problem.path for problem in check(config, offline=False).problems] == [
        "endpoints.chassis.bind",
        "state_dir",
    ]


@pytest.mark.parametrize(
    ("section", "place"),
    [
        (
            '[observe]\nlisten = "127.0.0.1:{port}"\n',
            "8:1: observe.listen: cannot listen on 127.0.0.1:{port}: ",
        ),
        (
            '[plugins.wamp]\nlisten = "ws://127.0.0.1:{port}/ws"\n[[plugins.wamp.users]]\nauthid = "a"\nticket = "b"\n',
            "8:1: plugins.wamp.listen: cannot listen on ws://127.0.0.1:{port}/ws: ",
        ),
    ],
)
def test_a_listening_port_in_use_is_a_problem_of_the_environment(
    config: Path, section: str, place: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as user:
        port = user.getsockname()[1]
        add(config, section.format(port=port))
        [problem] = check(config, offline=False).problems
        assert str(problem).startswith(f"{config}:{place.format(port=port)}")
        assert check(config, offline=True).problems == ()
    assert check(config, offline=False).problems == ()


@pytest.mark.parametrize("events", [True, False])
def test_an_event_without_a_possible_subscriber_is_warned_of_next_to_configured_receivers(
    config: Path, events: bool
) -> None:
    add(
        config,
        SOMEIP.format(bind=OURS)
        + "[[endpoints.chassis.services]]\nservice = 0x4001\nmajor = 1\noffered = true\n"
        + 'events = [{ id = 0x8001, eventgroup = 1 }]\nprovider = "//hpc/4001/1/0"\nremote = "127.0.0.1:30503"\n'
        + "[[endpoints.chassis.services]]\nservice = 0x1234\nmajor = 1\nmethods = [1]\n"
        + 'remote = "127.0.0.1:30501"\n'
        + ("events = [{ id = 0x8001, eventgroup = 1 }]\n" if events else ""),
    )
    report = check(config, offline=True)
    assert report.problems == ()
    assert [each.suggestion for each in report.warnings] == ["add [plugins.usubscription]"] * events


def test_the_addresses_of_the_running_streamer_of_the_file_are_no_problem(tmp_path: Path) -> None:
    first, second = tcp_ports(2)
    sections = (
        SOMEIP.format(bind=OURS)
        + '[endpoints.backbone]\ntransport = "zenoh"\nauthorities = ["ivi"]\nscouting = false\n'
        + f'listen = ["tcp/127.0.0.1:{first}", "unixsock-stream/{tmp_path}/z"]\n'
        + f'[plugins.wamp]\nlisten = "ws://127.0.0.1:{second}/ws"\n'
        + '[[plugins.wamp.users]]\nauthid = "a"\nticket = "b"\n'
    )
    with RunningStreamer(tmp_path, sections) as running, socket.create_server(("127.0.0.1", 0)) as other:
        assert check(running.path, offline=False).problems == ()
        port = other.getsockname()[1]
        running.write(sections, f'[observe]\nlisten = "127.0.0.1:{port}"\n')
        [problem] = check(running.path, offline=False).problems
        assert problem.path == "observe.listen"
        running.write(sections, head='authority = "hpc"\nstate_dir = "another"')
        assert len(check(running.path, offline=False).problems) == 4


def test_an_address_in_use_next_to_a_streamer_that_does_not_answer_may_be_its_own(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(config.parent)  # the whole path may be too long for a socket
    Path("state").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as used, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"state/{SOCKET}")
        silent.listen()
        add(config, f'[observe]\nlisten = "127.0.0.1:{used.getsockname()[1]}"\n')
        [problem] = check(config, offline=False).problems
    assert problem.path == "observe.listen"
    assert "Address already in use, perhaps by the streamer of this file: " in problem.text
    assert f"no answer in 2 s: process {os.getpid()} hangs" in problem.text


@pytest.mark.parametrize(
    ("token", "place", "problem"),
    [
        ('{ file = "." }', "10:11: observe.token.file", "is a directory: expected a file with the token"),
        ('{ file = "none" }', "10:11: observe.token.file", "No such file"),
        ('{ env = "NOT_SET_ANYWHERE" }', "10:11: observe.token.env", "has no token: expected 16 or more"),
    ],
)
def test_a_token_of_the_page_that_cannot_be_read_is_a_problem(
    config: Path, token: str, place: str, problem: str
) -> None:
    add(config, f'[observe]\nlisten = "127.0.0.1:0"\npage = true\ntoken = {token}\n')
    [found] = check(config, offline=False).problems
    assert str(found).startswith(f"{config}:{place}: ")
    assert problem in str(found)
    assert "chmod" not in str(found)
    assert check(config, offline=True).problems == ()


def test_a_relative_token_file_starts_at_the_configuration_file(
    config: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config.parent / "token").write_text("0123456789abcdef")
    (config.parent / "token").chmod(0o600)
    add(config, '[observe]\nlisten = "127.0.0.1:0"\npage = true\ntoken = { file = "token" }\n')
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert check(config, offline=False).problems == ()


def test_a_recording_directory_that_is_a_file_is_a_problem_on_its_line(config: Path) -> None:
    (config.parent / "state").mkdir()
    (config.parent / "state" / "recordings").touch()
    add(config, '[plugins.recorder]\ndirectory = "recordings"\n')
    [problem] = check(config, offline=False).problems
    text = f"plugins.recorder.directory: {config.parent}/state/recordings is a file: expected a directory"
    assert str(problem) == f"{config}:8:1: {text}"


def test_a_zenoh_socket_in_a_missing_directory_is_a_problem(config: Path) -> None:
    section = '[endpoints.b]\ntransport = "zenoh"\nauthorities = ["b"]\nlisten = ["unixsock-stream/{}/s"]\n'
    add(config, section.format(config.parent / "none"))
    [problem] = check(config, offline=False).problems
    assert str(problem).startswith(f"{config}:10:1: endpoints.b.listen: unixsock-stream/")
    assert str(problem).endswith("none is no directory")
    (config.parent / "none").mkdir()
    assert check(config, offline=False).problems == ()


ZENOH = '[endpoints.{name}]\ntransport = "zenoh"\nauthorities = ["{name}"]\n{more}\n'


@pytest.mark.parametrize(
    ("first", "second", "bound_by"),
    [
        ('config = "one.json5"', 'listen = ["tcp/{}"]', "endpoints.c.listen[0]"),
        ('config = "one.json5"', 'config = "two.json5"', "endpoints.b.config"),
        ('config = "one.json5"\nlisten = ["udp/{}"]', 'config = "two.json5"', ""),
        ('config = "modes.json5"', 'config = "two.json5"', ""),
    ],
)
def test_an_address_in_a_file_of_zenoh_is_of_one_endpoint(
    config: Path, first: str, second: str, bound_by: str
) -> None:
    [port] = tcp_ports(1)
    address = f"127.0.0.1:{port}"
    one = '{ mode: "peer", listen: { endpoints: %s } }'
    for name, listen in (
        ("one", f'["tcp/{address}"]'),
        ("two", f'{{ peer: ["tcp/{address}"] }}'),
        ("modes", f'{{ router: ["tcp/{address}"], peer: [] }}'),
    ):
        (config.parent / f"{name}.json5").write_text(one % listen, encoding="utf-8")
    add(config, ZENOH.format(name="b", more=first.format(address)))
    add(config, ZENOH.format(name="c", more=second.format(address)))
    found = [f"{each.path}: {each.text}" for each in check(config, offline=False).problems]
    place = "endpoints.c.config" if bound_by == "endpoints.b.config" else "endpoints.b.config"
    assert found == ([f"{place}: TCP {address} is bound by {bound_by}"] if bound_by else [])


# --- warnings --------------------------------------------------------------------------------------------------------

OFFERED = """\
[[endpoints.chassis.services]]
service = 0x1234
major = 1
offered = true
provider = "//hpc/1234/1/0"
remote = "127.0.30.41:30501"
events = [{{ id = 0x8001{tp} }}, {{ id = 0x8002 }}]
[[plugins.payloads.topics]]
topic = "//hpc/1234/1/8001"
type = "Image"
[[plugins.payloads.topics]]
topic = "//hpc/1234/1/8002"
type = "u8"
[plugins.payloads.types.Image]
kind = "array"
of = "u32"
count = {count}
"""


@pytest.mark.parametrize(
    ("count", "tp", "size"), [(351, "", 1_404), (350, "", None), (351, ", tp = true", None)]
)
def test_an_event_that_leaves_in_ip_fragments_is_a_warning(
    config: Path, count: int, tp: str, size: int | None
) -> None:
    add(config, SOMEIP.format(bind=OURS) + OFFERED.format(count=count, tp=tp))
    report = check(config, offline=True)
    text = (
        f"0x8001 has at least {size} bytes of payload and no tp; above 1400 bytes it leaves in IP fragments"
    )
    assert report.problems == ()
    found = [each.text for each in report.warnings if each.path == "endpoints.chassis.services[0].events"]
    assert found == ([] if size is None else [text])


# --- texts -----------------------------------------------------------------------------------------------------------


def test_a_report_without_problems_has_five_lines() -> None:
    report = CheckReport(
        file="vehicle.toml",
        stages=("file", "routes"),
        authority="hpc.vin1",
        serves=("hpc.vin1", "chassis"),
        endpoints=("backbone", "chassis"),
    )
    assert render(report).splitlines() == [
        "vehicle.toml: OK (file, routes)",
        "  authority  hpc.vin1",
        "  serves     hpc.vin1, chassis",
        "  endpoints  backbone, chassis",
        "  plugins    none",
    ]


def test_a_report_of_problems_contains_only_them() -> None:
    report = CheckReport(
        "vehicle.toml",
        stages=("file",),
        problems=(Problem("a", 0, "", "", "one"), Problem("b", 0, "", "", "two")),
    )
    assert render(report) == "a: one\nb: two"
