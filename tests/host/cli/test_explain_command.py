# SPDX-License-Identifier: Apache-2.0
"""`ustreamer explain`: from a configuration and the files on disk, with and without a running streamer."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.host.running_streamer import INSIDE, OUTSIDE, RunningStreamer
from tests.host.waiting import eventually
from ustreamer.core.routing.router import SELF
from ustreamer.core.routing.subscriptions import StaticDirectory, SubscriptionDirectory
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.host.cli.explain_command import message_kind
from ustreamer.host.cli.main import main
from ustreamer.host.runtime import plugins
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

PLUGINS: Final = "[plugins.usubscription]\nmap_size_mb = 1"
RULES: Final = """\
[[endpoints.outside.access]]
allow = true
type = "publish"
"""
TOPIC: Final = "//hpc/1234/1/8001"

Explained = Callable[..., tuple[int, str, str]]


@pytest.fixture
def explained(capsys: pytest.CaptureFixture[str]) -> Explained:
    """Exit code, stdout and stderr of `ustreamer explain`."""

    def run(path: Path, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(["explain", str(path), *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


def files(directory: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in directory.rglob("*") if each.is_file()}


def subscribe(running: RunningStreamer, subscriber: UUri, sample_period_ms: int) -> None:
    """Have an application outside subscribe to the topic."""
    app = running.app(OUTSIDE, subscriber.authority_name)
    attributes = pb.SubscribeAttributes(sample_period_ms=sample_period_ms)
    subscription = pb.SubscriptionRequest(topic=UUri.parse(TOPIC).to_pb(), attributes=attributes)
    client = RpcClient(app, subscriber, UuidSource(SYSTEM_CLOCK.wall_ms))
    client.call(UUri("hpc", 0, 3, 1), subscription.SerializeToString(), UPayloadFormat.PROTOBUF)


def test_subscriptions_on_disk_decide_with_and_without_a_running_streamer(
    tmp_path: Path, explained: Explained
) -> None:
    with RunningStreamer(tmp_path, PLUGINS) as running:
        code, out, _ = explained(running.path, "--source", TOPIC)
        assert (code, out.splitlines()[-1]) == (0, "no_subscriber")
        subscribe(running, UUri("cloud", 1, 1, 0), 40)
        _, while_running, _ = explained(running.path, "--source", TOPIC)
        running.app(INSIDE, "hpc").send(publish(new_id(), UUri.parse(TOPIC)))
        eventually(lambda: bool(running.streamer.targets()), "the route")
        [target] = running.streamer.targets()
    before = files(tmp_path)
    code, out, err = explained(running.path, "--source", TOPIC)
    assert (code, out, err) == (0, while_running, "")
    assert files(tmp_path) == before
    assert (
        out
        == """\
publish from up://hpc/1234/1/8001, coming in at inside
  yes valid        a PUBLISH keeps the rules of its type
  yes source       source up://hpc/1234/1/8001 lives behind 'inside', where it comes in
  yes access       endpoints.inside.access has no rules
  yes subscriber   up://cloud/1/1/0 has subscribed up://hpc/1234/1/8001, at most 25 Hz; it lives behind 'outside'
delivered, unless it expires or is throttled on the way:
  -> outside, at most 25 Hz
"""
    )
    found = json.loads(explained(running.path, "--source", TOPIC, "--json")[1])
    assert found["targets"] == [{"endpoint": "outside", "subscriber": None, "period_ns": 40_000_000}]
    assert (target.endpoint, target.period_ns) == ("outside", 40_000_000)


def test_json_output_has_all_fields(tmp_path: Path, explained: Explained) -> None:
    running = RunningStreamer(tmp_path, PLUGINS, RULES)
    arguments = ("--source", "//cloud/1/1/0", "--sink", "//hpc/0/3/1", "--json")
    code, out, _ = explained(running.path, *arguments)
    found = json.loads(out)
    steps = found.pop("steps")
    assert (code, found) == (
        0,
        {
            "type": "request",
            "source": "up://cloud/1/1/0",
            "sink": "up://hpc/0/3/1",
            "ingress": "outside",
            "verdict": "denied",
            "targets": [],
            "notes": [],
        },
    )
    assert [(each["rule"], each["passed"]) for each in steps] == [
        ("valid", True),
        ("source", True),
        ("access", False),
    ]
    assert "no rule of endpoints.outside.access allows a REQUEST" in steps[-1]["text"]
    assert not running.state_dir.exists()


@pytest.mark.parametrize(
    ("arguments", "verdict", "targets"),
    [
        (["--source", "/10/1/0", "--sink", "//hpc/0/3/1"], "delivered", [SELF]),
        (["--source", "//car/10/1/0", "--sink", "//cloud/1/1/1"], "delivered", ["outside"]),
        (["--source", "//car/10/1/8001", "--sink", "//cloud/1/1/0"], "delivered", ["outside"]),
        (["--source", "//car/10/1/1", "--sink", "//cloud/1/1/0"], "delivered", ["outside"]),
        (["--source", "//car/10/1/0", "--sink", "//cloud/1/1/1", "--at", "outside"], "denied", []),
        (["--source", "//mars/10/1/0", "--sink", "//cloud/1/1/1"], "denied", []),
        (["--source", "//car/10/1/0", "--sink", "//mars/1/1/1"], "dead_lettered", []),
        (["--source", "//car/10/1/0", "--sink", "//cloud/1/1/0", "--type", "request"], "refused", []),
    ],
)
def test_each_message_type_is_routed_to_its_sink(
    tmp_path: Path, explained: Explained, arguments: list[str], verdict: str, targets: list[str]
) -> None:
    code, out, _ = explained(RunningStreamer(tmp_path, PLUGINS).path, *arguments, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], [each["endpoint"] for each in found["targets"]]) == (0, verdict, targets)


def test_source_and_sink_determine_the_message_type() -> None:
    topic, method, reply = UUri("a", 1, 1, 0x8000), UUri("a", 1, 1, 1), UUri("a", 1, 1, 0)
    assert [
        message_kind(topic, None),
        message_kind(reply, method),
        message_kind(method, reply),
        message_kind(topic, reply),
    ] == [
        "publish",
        "request",
        "response",
        "notification",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--source"),
        (["--source", "x"], "--source"),
        (["--source", TOPIC, "--type", "call"], "invalid choice"),
        (["--source", TOPIC, "--type", "request"], "a request needs --sink"),
        (["--source", TOPIC, "--at", "moon"], "have: self, inside, outside"),
    ],
)
def test_contradictory_arguments_are_a_usage_error(
    tmp_path: Path, explained: Explained, arguments: list[str], text: str
) -> None:
    code, out, err = explained(RunningStreamer(tmp_path).path, *arguments)
    assert (code, out) == (2, "")
    assert text in err


def test_an_invalid_configuration_is_reported_as_by_check(tmp_path: Path, explained: Explained) -> None:
    (tmp_path / "u.toml").write_text("nonsense")
    assert explained(tmp_path / "u.toml", "--source", TOPIC)[0] == 78


def test_a_damaged_store_is_not_trusted(tmp_path: Path, explained: Explained) -> None:
    with RunningStreamer(tmp_path, PLUGINS) as running:
        subscribe(running, UUri("cloud", 1, 1, 0), 40)
    [data] = running.state_dir.rglob("usubscription/data.mdb")
    os.truncate(data, 5000)
    code, out, err = explained(running.path, "--source", TOPIC)
    assert (code, out) == (74, "")
    assert str(data.parent) in err


class Forgetful:
    """A subscription directory without a store."""

    def __init__(self, config: Any, context: PluginContext) -> None: ...

    class Config(msgspec.Struct, frozen=True): ...

    @hookimpl
    def ustreamer_subscription_directory(self) -> SubscriptionDirectory:
        return StaticDirectory(())


def test_missing_runtime_knowledge_is_reported(
    tmp_path: Path, explained: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        plugins, "load_plugin_classes", lambda *_: ({**USABLE[0], "forgetful": Forgetful}, {})
    )
    path = RunningStreamer(tmp_path, "[plugins.forgetful]").path
    _, out, _ = explained(path, "--source", TOPIC)
    note = "plugin forgetful: its subscriptions are known to a running streamer only"
    assert out.splitlines()[-1] == f"note: {note}"
    assert json.loads(explained(path, "--source", TOPIC, "--json")[1])["notes"] == [note]


USABLE: Final[tuple[dict[str, type[Any]], Sequence[object]]] = (dict(plugins.load_plugin_classes()[0]), ())
