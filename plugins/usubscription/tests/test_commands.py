# SPDX-License-Identifier: Apache-2.0
"""`ustreamer subscriptions`, on the store of a stopped and of a running streamer."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ustreamer_usubscription import subscriptions_command
from ustreamer_usubscription.commands import add_commands
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord
from ustreamer_usubscription.operator_changes import (
    AddedSubscriptions,
    RemovalPattern,
    change_of,
    change_store,
)
from ustreamer_usubscription.service import STORE_DIRECTORY
from ustreamer_usubscription.store import store_contents
from ustreamer_usubscription.store.store import (
    RecordChange,
    SubscriptionStore,
    put_observer,
    put_subscription,
    put_topic,
)
from ustreamer_usubscription.subscriptions_command import ACTIONS
from ustreamer_usubscription.subscriptions_file import read_file

from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.store_reader import StoreReader
from ustreamer.hooks import StoredMessages
from ustreamer.host.cli.main import main
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

TOPIC, OTHER = UUri("device2", 0x10AB, 3, 0x80CD), UUri("device2", 0x10AB, 3, 0x80CE)
FIRST, SECOND = UUri("device1", 1, 1, 0), UUri("device1", 2, 1, 0)
LATER_MS = 4_102_444_800_000  # 2100


@pytest.fixture(params=["stopped", "running"])
def filled(request: pytest.FixtureRequest, make_rig: "Callable[..., ServiceRig]") -> "ServiceRig":
    rig = make_rig().start()
    rig.subscribe(TOPIC, caller=FIRST, sample_period_ms=100)
    rig.subscribe(TOPIC, caller=SECOND, expire_ms=LATER_MS)
    rig.subscribe(OTHER, caller=FIRST)
    if request.param == "stopped":
        rig.stop()
    return rig


def output_of(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main(["subscriptions", *map(str, arguments)]) == code
    return capsys.readouterr().out


def listed(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[tuple[str, str]]:
    found: list[dict[str, Any]] = json.loads(output_of(capsys, *arguments, "--json"))
    return [(each["topic"], each["subscriber"]) for each in found]


def test_subscriptions_are_listed_with_rate_and_end(
    filled: "ServiceRig", capsys: pytest.CaptureFixture[str]
) -> None:
    assert output_of(capsys, "ls", "--state-dir", filled.state_dir).splitlines() == [
        "up://device2/10AB/3/80CD  up://device1/1/1/0  SUBSCRIBED  every 100 ms  for ever",
        "up://device2/10AB/3/80CD  up://device1/2/1/0  SUBSCRIBED  every message  until 2100-01-01T00:00:00.000+00:00",
        "up://device2/10AB/3/80CE  up://device1/1/1/0  SUBSCRIBED  every message  for ever",
    ]


def test_a_subscription_without_a_response_of_the_other_device_is_pending(
    make_rig: "Callable[..., ServiceRig]", capsys: pytest.CaptureFixture[str]
) -> None:
    rig = make_rig().start()
    remote = UUri("device3", 1, 1, 0x8000)
    rig.subscribe(remote)
    place = ("--state-dir", rig.state_dir)
    assert output_of(capsys, "show", *place, remote).splitlines()[0] == f"{remote}  SUBSCRIBE_PENDING"
    rig.remote_grants(rig.take_remote_request())
    assert output_of(capsys, "show", *place, remote).splitlines()[0] == f"{remote}  SUBSCRIBED"


def test_they_are_listed_by_topic_and_subscriber(
    filled: "ServiceRig", capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--state-dir", filled.state_dir)
    pairs = [
        (str(topic), str(subscriber))
        for topic, subscriber in [(TOPIC, FIRST), (TOPIC, SECOND), (OTHER, FIRST)]
    ]
    assert listed(capsys, "ls", *place) == pairs
    assert listed(capsys, "ls", *place, "--topic", TOPIC) == pairs[:2]
    assert listed(capsys, "ls", *place, "--topic", "up://*/FFFF10AB/FF/FFFF") == pairs
    assert listed(capsys, "ls", *place, "--subscriber", FIRST) == [pairs[0], pairs[2]]
    assert listed(capsys, "ls", *place, "--subscriber", FIRST, "--topic", OTHER) == [pairs[2]]


def test_a_topic_is_shown(filled: "ServiceRig", capsys: pytest.CaptureFixture[str]) -> None:
    shown = output_of(capsys, "show", "--state-dir", filled.state_dir, TOPIC)
    assert [line.strip() for line in shown.splitlines()][:5] == [
        f"{TOPIC}  SUBSCRIBED",
        str(FIRST),
        "rate     every 100 ms",
        "ends     for ever",
        "details  none",
    ]
    assert listed(capsys, "show", "--state-dir", filled.state_dir, OTHER) == [(str(OTHER), str(FIRST))]
    assert main(["subscriptions", "show", "--state-dir", str(filled.state_dir), "up://a/1/1/8000"]) == 1
    assert "it has no subscriber" in capsys.readouterr().err


def test_an_export_is_a_line_for_each(
    filled: "ServiceRig", capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "vehicle.toml"
    config.write_text(f'state_dir = "{filled.state_dir}"\n', encoding="utf-8")
    lines = [json.loads(line) for line in output_of(capsys, "export", config).splitlines()]
    assert lines[1] == {
        "topic": str(TOPIC),
        "subscriber": str(SECOND),
        "status": "SUBSCRIBED",
        "period_ns": 0,
        "expire_ms": LATER_MS,
        "details": "",
        "version": 3,
    }
    assert [line["period_ns"] for line in lines] == [100_000_000, 0, 0]


def test_a_relative_state_dir_is_relative_to_the_file(
    filled: "ServiceRig",
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "state").symlink_to(filled.state_dir)
    (folder / "vehicle.toml").write_text('state_dir = "state"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert len(output_of(capsys, "export", "configs/vehicle.toml").splitlines()) == 3


def test_a_valid_store_is_reported_as_valid(filled: "ServiceRig", capsys: pytest.CaptureFixture[str]) -> None:
    assert "3 subscriptions, layout 3" in output_of(capsys, "check", "--state-dir", filled.state_dir)
    report = json.loads(output_of(capsys, "check", "--state-dir", filled.state_dir, "--json"))
    assert (report["subscriptions"], report["problem"], report["aside"]) == (3, None, [])
    assert report["verified"] is (report["used_by"] is None)


def test_a_damaged_store_is_called_damaged_by_every_action(
    make_rig: "Callable[..., ServiceRig]", capsys: pytest.CaptureFixture[str]
) -> None:
    rig = make_rig().start()
    rig.subscribe()
    rig.stop()
    data = rig.state_dir / "usubscription" / "data.mdb"
    data.write_bytes(data.read_bytes()[: 3 * 4096])
    assert str(data) in output_of(capsys, "check", "--state-dir", rig.state_dir, code=74)
    output_of(capsys, "ls", "--state-dir", rig.state_dir, code=74)
    rig.restart()
    assert "moved aside: usubscription.damaged-1-" in output_of(capsys, "check", "--state-dir", rig.state_dir)


def test_reading_next_to_a_writer_does_not_disturb_it(
    filled: "ServiceRig", capsys: pytest.CaptureFixture[str]
) -> None:
    filled.restart()
    for number in range(10, 20):
        filled.subscribe(caller=UUri("device1", number, 1, 0))
        assert len(listed(capsys, "ls", "--state-dir", filled.state_dir)) == number - 6
    assert filled.statistics("subscriptions") == 13


@pytest.mark.parametrize(
    ("is_removed", "is_made_again", "code"),
    [(True, False, UCode.UNAVAILABLE), (True, True, UCode.UNAVAILABLE), (False, False, UCode.DATA_LOSS)],
)
def test_a_store_that_is_removed_while_it_is_read_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_removed: bool, is_made_again: bool, code: UCode
) -> None:
    store = tmp_path / STORE_DIRECTORY
    store.mkdir()

    def inspect(place: Path) -> object:
        if is_removed:
            place.rmdir()
        if is_made_again:
            place.mkdir()
        raise StoreDamaged(f"store {place}: No such file or directory")

    monkeypatch.setattr(store_contents, "inspect_store", inspect)
    with pytest.raises(UStatusError) as refused:
        subscriptions_command._read_contents(store)
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ('state_dir = "/nowhere/at/all"', 69, "there is no store of subscriptions"),
        ("state_dir = 1", 78, "expected a path"),
        ("state_dir = ", 78, "vehicle.toml: "),
    ],
)
def test_a_place_without_a_store_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, why: str
) -> None:
    config = tmp_path / "vehicle.toml"
    config.write_text(text, encoding="utf-8")
    assert main(["subscriptions", "ls", str(config)]) == code
    assert why in capsys.readouterr().err


def test_the_command_prints_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    top = argparse.ArgumentParser()
    add_commands(top.add_subparsers(), lambda _: StoredMessages())
    with pytest.raises(SystemExit):
        top.parse_args(["subscriptions", "ls"])
    assert "--state-dir" in capsys.readouterr().err


def test_other_kinds_of_records_are_no_subscriptions(
    filled: "ServiceRig", capsys: pytest.CaptureFixture[str]
) -> None:
    filled.stop()
    store = SubscriptionStore(filled.state_dir / "usubscription", 1 << 24)
    store.open()
    store.commit([put_observer(Observer(TOPIC, FIRST)), put_topic(TOPIC, TopicState.ACTIVE)])
    store.close()
    assert len(listed(capsys, "ls", "--state-dir", filled.state_dir)) == 3
    assert "3 subscriptions, layout 3" in output_of(capsys, "check", "--state-dir", filled.state_dir)


def test_a_read_next_to_a_writer_is_a_consistent_snapshot(
    tmp_path: Path,
) -> None:
    """The pages of the snapshot are not changed until the reader ends, because the reader is registered in the lock
    file.
    """
    before, after = b"b" * 3000, b"a" * 3000

    def changes(details: bytes) -> list[RecordChange]:
        return [
            put_subscription(SubscriptionRecord(TOPIC, UUri("device1", n, 1, 0), details=details))
            for n in range(3000)
        ]

    store = SubscriptionStore(tmp_path / "s", 1 << 28)
    store.open()
    store.commit(changes(before))
    with StoreReader("snapshot", tmp_path / "s") as child:
        chunks = child.chunks()
        first = next(chunks)  # now it has its moment; and more than its pipe holds is to come
        for _ in range(4):  # what one transaction frees, the second one after it uses
            store.commit(changes(after))
        found = store_contents.contents_from_chunks([first, *chunks])
    assert {entry.details for entry in found.subscriptions} == {before}
    assert len(found) == 3000
    store.close()
    assert {entry.details for entry in store_contents.read_store(tmp_path / "s", "verify").subscriptions} == {
        after
    }


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_has_arguments(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["subscriptions", action, "--help"])
    assert ended.value.code == 0
    assert f"ustreamer subscriptions {action}" in capsys.readouterr().out


# --- rm ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(filled: "ServiceRig", monkeypatch: pytest.MonkeyPatch) -> "ServiceRig":
    """The rig, with the admin socket of its streamer."""
    from ustreamer.host.cli import main as host

    def request_plugin(state_dir: Path, plugin: str, request: dict[str, Any]) -> Any:
        assert (state_dir, plugin) == (filled.state_dir, "usubscription")
        return filled.plugin.handle_request(request)

    monkeypatch.setattr(host, "_request_plugin", request_plugin)
    return filled


def test_subscriptions_are_removed_with_and_without_a_running_streamer(
    admin: "ServiceRig", capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--state-dir", admin.state_dir)
    assert output_of(capsys, "rm", *place, "--subscriber", FIRST) == "2 subscriptions removed\n"
    assert listed(capsys, "ls", *place) == [(str(TOPIC), str(SECOND))]
    removed = json.loads(output_of(capsys, "rm", *place, "--topic", "//*/FFFFFFFF/FF/FFFF", "--json"))
    assert removed == {"removed": 1}
    assert listed(capsys, "ls", *place) == []
    assert "removed by an operator" in output_of(capsys, "history", *place)
    admin.restart()
    assert admin.pairs() == []


def test_rm_needs_a_filter_and_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output_of(capsys, "rm", "--state-dir", tmp_path, code=78)
    output_of(capsys, "rm", "--state-dir", tmp_path, "--topic", TOPIC, code=69)


def test_a_request_names_a_topic_a_subscriber_or_both() -> None:
    assert change_of({"remove": {"topic": str(TOPIC)}}) == RemovalPattern(TOPIC, ANY)
    assert change_of({"remove": {"subscriber": str(FIRST)}}) == RemovalPattern(ANY, FIRST)


def test_a_running_service_refuses_a_request_that_it_does_not_know(
    make_rig: "Callable[..., ServiceRig]",
) -> None:
    rig = make_rig().start()
    requests: list[dict[str, Any]] = [
        {},
        {"remove": {}},
        {"remove": {"all": "1"}},
        {"remove": "x"},
        {"add": "x"},
    ]
    for request in requests:
        with pytest.raises(UStatusError, match="expected remove with topic, subscriber or both"):
            rig.plugin.handle_request(request)
    with pytest.raises(UStatusError, match=r"add: .*missing required field `subscriber`"):
        rig.plugin.handle_request({"add": [{"topic": str(TOPIC)}]})
    rig.stop()
    with pytest.raises(UStatusError, match=r"core\.usubscription has stopped"):
        rig.plugin.handle_request({"remove": {"topic": str(TOPIC)}})


# --- import -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def export(filled: "ServiceRig", tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """What `export` printed about the subscriptions of `filled`, which are then removed."""
    path = tmp_path / "export.jsonl"
    path.write_text(output_of(capsys, "export", "--state-dir", filled.state_dir), encoding="utf-8")
    return path


def test_an_export_is_imported_with_and_without_a_running_streamer(
    admin: "ServiceRig", export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--state-dir", admin.state_dir)
    assert output_of(capsys, "rm", *place, "--topic", "//*/FFFFFFFF/FF/FFFF") == "3 subscriptions removed\n"
    assert output_of(capsys, "import", *place, export) == "3 subscriptions imported\n"
    assert output_of(capsys, "export", *place) == export.read_text(encoding="utf-8")
    assert json.loads(output_of(capsys, "import", *place, export, "--json")) == {"imported": 3, "ended": 0}
    admin.restart()
    assert sorted(admin.pairs()) == [(TOPIC, FIRST), (TOPIC, SECOND), (OTHER, FIRST)]


def test_an_export_becomes_the_store_of_another_streamer(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--state-dir", tmp_path / "of another" / "streamer")
    assert output_of(capsys, "import", *place, export) == "3 subscriptions imported\n"
    there = [json.loads(line) for line in output_of(capsys, "export", *place).splitlines()]
    here = [json.loads(line) for line in export.read_text(encoding="utf-8").splitlines()]
    for each in (*there, *here):
        del each["status"]  # the other streamer has not asked the other device yet
    assert there == here
    assert "right" in output_of(capsys, "check", *place)


def test_the_command_reports_subscriptions_that_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"topic": "//a/1/1/8001", "subscriber": f"//b/{n}/1/0", "expire_ms": n or None} for n in range(3)
    ]
    path = tmp_path / "old.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert main(["subscriptions", "import", "--state-dir", str(tmp_path / "state"), str(path)]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"{path}: 2 subscriptions left out, because they have ended\n"
    assert shown.out == "1 subscription imported\n"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"topic": "//a/1/1/8001"}', "missing required field `subscriber`"),
        ('{"topic": "//a/1/1/8001", "subscriber": "//b/1/1/0", "rate": 1}', "unknown field `rate`"),
        ('{"topic": "//a/1/1/8001", "subscriber": "//b/1/1/0", "period_ns": -1}', "period_ns"),
        ('{"topic": "//a/1/1/1", "subscriber": "//b/1/1/0"}', "resource 1 is not a topic"),
        ('{"topic": "//a/1/1/8001", "subscriber": "//b/1/1/8001"}', "expected resource 0"),
        ('{"topic": "//*/1/1/8001", "subscriber": "//b/1/1/0"}', "authority is a wildcard"),
        ('{"topic": "/1/1/8001", "subscriber": "//b/1/1/0"}', "authority is empty"),
        (
            '{"topic": "//a/1/1/8001", "subscriber": "//b/1/1/0", "details": "xy"}',
            "expected hexadecimal digits",
        ),
        ("[]", "Expected `object`"),
        ("\\xff", "malformed"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_imported(
    line: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text(f'{{"topic": "//a/1/1/8001", "subscriber": "//b/1/1/0"}}\n\n{line}\n', encoding="utf-8")
    place = ("--state-dir", tmp_path / "state")
    assert main(["subscriptions", "import", *map(str, place), str(path)]) == 78
    error = capsys.readouterr().err
    assert error.startswith(f"INVALID_ARGUMENT: {path}:3: ")
    assert problem in error
    assert not (tmp_path / "state").exists()


def test_static_subscriptions_are_imported_as_up_streamer_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "subscription_data.json"
    static = {
        "//authority-b/3039/1/8001": ["//authority-a/5678/1/1234", "//authority-a/5678/1/1", 7],
        "//authority-a/5BA0/1/9001": ["//authority-b/5678/1/1234"],
        "//authority-c/0x1236/1/8001": ["//authority-c/5678/1/1234"],
        "//authority-d/1/1/8001": "//authority-c/5678/1/1234",
    }
    path.write_text(json.dumps(static), encoding="utf-8")
    place = ("--state-dir", str(tmp_path / "state"))
    assert main(["subscriptions", "import", *place, str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == "2 subscriptions imported\n"
    assert listed(capsys, "ls", *place) == [
        ("up://authority-a/5BA0/1/8001", "up://authority-b/5678/1/0"),
        ("up://authority-b/3039/1/8001", "up://authority-a/5678/1/0"),
    ]
    notes = [line.removeprefix(f"{path}: ") for line in err.splitlines()]
    assert [note[:60] for note in notes] == [
        "up://authority-b/3039/1/8001: subscriber 7 left out: UUri '7",
        "//authority-a/5BA0/1/9001: imported as up://authority-a/5BA0",
        "//authority-c/0x1236/1/8001: left out: UUri '//authority-c/0",
        "up://authority-d/1/1/8001: left out: expected an array of su",
    ]


def test_an_empty_file_has_no_subscriptions(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    for text in ("", "\n \n", "{}"):
        path.write_text(text, encoding="utf-8")
        assert read_file(path) == ((), ())


def test_a_file_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subscriptions", "import", "--state-dir", str(tmp_path), str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_above_a_limit_nothing_is_imported(make_rig: "Callable[..., ServiceRig]") -> None:
    rig = make_rig(max_subscriptions=2).start()
    texts = [{"topic": str(TOPIC), "subscriber": f"//device1/{number}/1/0"} for number in (1, 2, 3)]
    with pytest.raises(UStatusError, match="max_subscriptions is 2"):
        rig.plugin.handle_request({"add": texts})
    assert rig.pairs() == []
    assert rig.plugin.handle_request({"add": texts[:2]}) == 2
    assert len(rig.pairs()) == 2


def test_an_ended_subscription_is_not_imported(make_rig: "Callable[..., ServiceRig]") -> None:
    rig = make_rig().start()
    ended = {"topic": str(TOPIC), "subscriber": str(FIRST), "expire_ms": 1}
    assert isinstance(change_of({"add": [ended]}), AddedSubscriptions)
    assert rig.plugin.handle_request({"add": [ended]}) == 0
    assert rig.pairs() == []


@pytest.mark.parametrize("running", [False, True])
def test_an_imported_topic_of_another_device_is_subscribed_there(
    make_rig: "Callable[..., ServiceRig]", *, running: bool
) -> None:
    rig, remote = make_rig(), UUri("device3", 1, 1, 0x8000)
    texts = {"add": [{"topic": str(remote), "subscriber": str(FIRST)}]}
    if running:
        assert rig.start().plugin.handle_request(texts) == 1
    else:
        assert change_store(rig.state_dir / STORE_DIRECTORY, change_of(texts)) == 1
        rig.start()
    rig.remote_grants(rig.take_remote_request())
    assert rig.pairs() == [(remote, FIRST)]
