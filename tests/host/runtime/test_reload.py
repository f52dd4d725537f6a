# SPDX-License-Identifier: Apache-2.0
"""A streamer changes its configuration: permitted changes in one step, all others refused by key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.host.running_streamer import INSIDE, OUTSIDE, RunningStreamer
from tests.host.waiting import eventually
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.hooks import StreamerSettings, hookimpl
from ustreamer.host.admin.server import AdminError, ReloadRequest
from ustreamer.host.runtime import process
from ustreamer.host.runtime.reload import ReloadRefused, changed_keys, keys_needing_restart
from ustreamer.testing.messages import new_id
from ustreamer.transports import BuiltinTransports
from ustreamer.uprotocol.umessage import UMessage, notification, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("hpc", 0x1234, 1, 0x8001)
PLUGINS: Final = "[plugins.usubscription]\nmap_size_mb = 1\n[plugins.throttle]"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningStreamer]:
    with RunningStreamer(tmp_path, PLUGINS) as running:
        yield running


def reload(running: RunningStreamer) -> list[str]:
    return running.streamer.reload(process.load(running.path).config)


def notify(running: RunningStreamer, sink: UUri, payload: bytes = b"") -> None:
    running.app(INSIDE, "hpc").send(notification(new_id(), TOPIC, sink, payload))


def payloads(received: list[UMessage]) -> list[bytes]:
    return [message.payload for message in received]


# --- permitted changes -----------------------------------------------------------------------------------------------


def test_nothing_changes_when_nothing_has_changed(running: RunningStreamer) -> None:
    assert reload(running) == []


def test_an_authority_that_is_new_behind_an_endpoint_is_reached_and_trusted_from_then_on(
    running: RunningStreamer,
) -> None:
    fleet = UUri("fleet", 1, 1, 0)
    received = running.listen(OUTSIDE, "fleet", fleet)
    notify(running, fleet, b"before")  # no transport listens for it
    running.write(PLUGINS, authorities={OUTSIDE: ("cloud", "fleet")})
    assert reload(running) == ["endpoints.outside.authorities"]
    notify(running, fleet, b"after")
    eventually(lambda: len(received) == 1, "the notification")
    assert payloads(received) == [b"after"]
    back = running.listen(INSIDE, "hpc", UUri("hpc", 9, 1, 0))
    source = UUri("fleet", 1, 1, 0x8001)
    running.app(OUTSIDE, "fleet").send(notification(new_id(), source, UUri("hpc", 9, 1, 0), b"back"))
    eventually(lambda: payloads(back) == [b"back"], "the way back")
    assert running.streamer.ledger().denied == 0


def test_plugins_see_which_authorities_have_a_place_now(running: RunningStreamer) -> None:
    context = running.streamer.context
    assert list(context.authorities) == ["hpc", "car", "cloud"]
    running.write(PLUGINS, authorities={INSIDE: ("hpc",), OUTSIDE: ("cloud", "fleet")})
    reload(running)
    assert list(context.authorities) == ["hpc", "cloud", "fleet"]
    assert ("fleet" in context.authorities, "car" in context.authorities) == (True, False)
    assert len(context.authorities) == 3


def test_messages_follow_an_authority_to_its_new_endpoint(running: RunningStreamer) -> None:
    car = UUri("car", 1, 1, 0)
    received = running.listen(OUTSIDE, "car", car)
    running.write(PLUGINS, authorities={INSIDE: ("hpc",), OUTSIDE: ("cloud", "car")})
    reload(running)
    notify(running, car, b"x")
    eventually(lambda: payloads(received) == [b"x"], "the notification")
    assert {each.name: each.authorities for each in running.streamer.routes().endpoints} == {
        INSIDE: ("hpc",),
        OUTSIDE: ("cloud", "car"),
    }


def test_the_link_state_of_an_authority_follows_its_endpoint(running: RunningStreamer) -> None:
    links = running.streamer._links
    links.set_state(OUTSIDE, up=False)
    assert (links.state_of("car").up, links.state_of("fleet").up) == (True, True)
    running.write(PLUGINS, authorities={INSIDE: ("hpc",), OUTSIDE: ("cloud", "car", "fleet")})
    reload(running)
    assert (links.state_of("car").up, links.state_of("fleet").up) == (False, False)


def test_there_and_back_leaves_the_listeners_that_were_there(running: RunningStreamer) -> None:
    def listeners() -> list[str]:
        return [repr(running.streamer.transports[name]) for name in (INSIDE, OUTSIDE)]

    before = listeners()
    running.write(PLUGINS, authorities={INSIDE: ("hpc",), OUTSIDE: ("cloud", "car", "a", "b")})
    reload(running)
    assert listeners() != before
    running.write(PLUGINS)
    reload(running)
    assert listeners() == before


def test_a_reload_changes_queue_limits(running: RunningStreamer) -> None:
    received = running.listen(OUTSIDE, "cloud", UUri("cloud", 1, 1, 0))
    running.write(PLUGINS, "[egress.outside]\nqueue_bytes = 1")
    assert reload(running) == ["egress.outside.queue_bytes"]
    notify(running, UUri("cloud", 1, 1, 0), b"too large for the queue")
    eventually(lambda: running.streamer.ledger().dead_lettered == 1, "the dead letter")
    running.write(PLUGINS)
    reload(running)
    notify(running, UUri("cloud", 1, 1, 0), b"fits")
    eventually(lambda: payloads(received) == [b"fits"], "the notification")


def test_plugins_receive_new_settings_while_the_dispatch_is_paused(
    running: RunningStreamer, caplog: pytest.LogCaptureFixture
) -> None:
    notified: list[tuple[int, object, list[int]]] = []

    class Notified:
        @hookimpl
        def ustreamer_configured(self, settings: StreamerSettings) -> None:
            tuned = [each.period_since_ns for each in made]
            notified.append((settings.egress[OUTSIDE].queue_messages, settings.plugins["throttle"], tuned))
            raise ZeroDivisionError("called")  # a plugin error does not stop the reload

        @hookimpl
        def ustreamer_filters(self, delivery: Delivery) -> None:
            made.append(delivery)

    made: list[Delivery] = []
    running.streamer.plugins.register(Notified())
    received = running.listen(OUTSIDE, "cloud", UUri("cloud", 1, 1, 0))
    notify(running, UUri("cloud", 1, 1, 0))
    eventually(lambda: len(received) == 1, "the notification")
    before = [each.period_since_ns for each in made]
    limits = "[egress.outside]\nqueue_messages = 7"
    running.write("[plugins.usubscription]\nmap_size_mb = 1\n[plugins.throttle]\ntolerance = 0.2", limits)
    assert reload(running) == ["egress.outside.queue_messages", "plugins.throttle.tolerance"]
    [(queue_messages, throttle, tuned)] = notified
    assert (queue_messages, getattr(throttle, "tolerance", None)) == (7, 0.2)
    assert tuned == before  # filters are rebuilt after it
    assert made[-1].period_since_ns > before[-1]
    assert [r.message for r in caplog.records if r.message == "plugins.failed"] == ["plugins.failed"]


def test_a_plugin_applies_a_reloadable_change(running: RunningStreamer) -> None:
    running.write(PLUGINS.replace("map_size_mb = 1", "map_size_mb = 1\nmax_topics = 7"), "tolerance = 0.3")
    assert reload(running) == ["plugins.throttle.tolerance", "plugins.usubscription.max_topics"]
    plugins: dict[str, Any] = dict(running.streamer.plugins.list_name_plugin())
    assert plugins["usubscription"].service.config.max_topics == 7
    assert plugins["throttle"]._config.tolerance == 0.3


# --- refused changes -------------------------------------------------------------------------------------------------


THIRD: Final = '[endpoints.third]\ntransport = "local"\nnetwork = "third"\nauthorities = ["x"]'
MAY_NOT: list[tuple[str, dict[str, tuple[str, ...]], str, list[str], list[str]]] = [
    ("a new endpoint", {}, "", [PLUGINS, THIRD], ["endpoints.third: needs a restart"]),
    (
        "own authority",
        {},
        'authority = "ecu"\nstate_dir = "state"',
        [PLUGINS],
        ["authority: needs a restart"],
    ),
    ("state_dir", {}, 'authority = "hpc"\nstate_dir = "other"', [PLUGINS], ["state_dir: needs a restart"]),
    ("a plugin less", {}, "", ["[plugins.throttle]"], ["plugins.usubscription: needs a restart"]),
    (
        "dead letters",
        {},
        "",
        [PLUGINS, "[dead_letters]\nmessages = 5"],
        ["dead_letters.messages: needs a restart"],
    ),
    (
        "the place of our own authority",
        {INSIDE: ("car",), OUTSIDE: ("cloud", "hpc")},
        "",
        [PLUGINS],
        [
            f"endpoints.{name}.authorities: moving the streamer's own authority 'hpc' needs a restart"
            for name in (INSIDE, OUTSIDE)
        ],
    ),
    (
        "the star",
        {OUTSIDE: ("cloud", "*")},
        "",
        [PLUGINS],
        ["endpoints.outside.authorities: moving '*' needs a restart"],
    ),
    (
        "the order of plugins",
        {},
        "",
        ["[plugins.throttle]\n[plugins.usubscription]\nmap_size_mb = 1"],
        ["plugins: another order needs a restart"],
    ),
    (
        "what plugins cannot change",
        {},
        "",
        [PLUGINS.replace("map_size_mb = 1", "map_size_mb = 2\nhistory = 7"), 'mode = "latest"'],
        [
            "plugins.throttle: mode: needs a restart",
            "plugins.usubscription: map_size_mb, history: needs a restart",
        ],
    ),
    (
        "two things at once",
        {OUTSIDE: ("cloud", "fleet")},
        'authority = "hpc"\nstate_dir = "other"',
        [PLUGINS, THIRD],
        ["endpoints.third: needs a restart", "state_dir: needs a restart"],
    ),
]


@pytest.mark.parametrize(
    ("authorities", "head", "sections", "problems"),
    [each[1:] for each in MAY_NOT],
    ids=[each[0] for each in MAY_NOT],
)
def test_a_change_that_needs_a_restart_is_refused_by_key(
    running: RunningStreamer,
    authorities: dict[str, tuple[str, ...]],
    head: str,
    sections: list[str],
    problems: list[str],
) -> None:
    before = running.streamer.routes(), running.streamer.dispatcher.router
    running.write(*sections, authorities=authorities, head=head)
    with pytest.raises(ReloadRefused) as refused:
        reload(running)
    assert sorted(refused.value.problems) == sorted(problems)
    assert (running.streamer.routes(), running.streamer.dispatcher.router) == before


def test_the_transport_of_an_endpoint_needs_a_restart(tmp_path: Path) -> None:
    configs = []
    kinds = {"someip": BuiltinTransports().ustreamer_transports()["someip"]}
    for port, authorities in ((30500, '"chassis"'), (30501, '"chassis"'), (30500, '"chassis", "trailer"')):
        path = tmp_path / "u.toml"
        path.write_text(
            f'authority = "hpc"\n[endpoints.a]\ntransport = "someip"\nauthorities = [{authorities}]\n'
            f'bind = "127.0.0.1"\nport = {port}\n'
        )
        configs.append(process.load(path).config)
    first, moved, served = configs
    assert keys_needing_restart(first, moved, kinds) == ["endpoints.a.port: needs a restart"]
    # The uSubscription serves the authorities behind SOME/IP, and their name is in every address there.
    [why] = keys_needing_restart(first, served, kinds)
    assert why == (
        "endpoints.a.authorities: another authority behind a transport without a uSubscription needs a restart"
    )
    assert changed_keys(first, served) == ["endpoints.a.authorities"]


def test_a_trusted_authority_is_not_left_to_the_wildcard_endpoint(tmp_path: Path) -> None:
    configs = []
    for inside, world in (
        ('"hpc", "car"', '"*"'),
        ('"hpc"', '"car", "*"'),
        ('"hpc"', '"*"'),
        ('"hpc"', '"cloud"'),
    ):
        path = tmp_path / "u.toml"
        path.write_text(
            'authority = "hpc"\n'
            f'[endpoints.a]\ntransport = "local"\nnetwork = "a"\nauthorities = [{inside}]\n'
            f'[endpoints.b]\ntransport = "local"\nnetwork = "b"\nauthorities = [{world}]\n'
        )
        configs.append(process.load(path).config)
    first, moved, left, closed = configs
    kinds = {"local": BuiltinTransports().ustreamer_transports()["local"]}
    assert keys_needing_restart(first, moved, kinds) == []
    assert keys_needing_restart(first, left, kinds) == ["endpoints: leaving 'car' to '*' needs a restart"]
    assert keys_needing_restart(first, closed, kinds) == [
        "endpoints.b.authorities: moving '*' needs a restart"
    ]
    assert keys_needing_restart(left, first, kinds) == []


def test_another_rule_of_access_holds_from_the_next_message_on(running: RunningStreamer) -> None:
    received = running.listen(OUTSIDE, "cloud", UUri("cloud", 1, 1, 0))
    notify(running, UUri("cloud", 1, 1, 0), b"1")
    text = running.path.read_text()
    rule = '\naccess = [{ allow = false, type = "notification" }]\n'
    running.path.write_text(text.replace('["hpc", "car"]', f'["hpc", "car"]{rule}'))
    assert reload(running) == ["endpoints.inside.access"]
    notify(running, UUri("cloud", 1, 1, 0), b"2")
    running.path.write_text(text)
    assert reload(running) == ["endpoints.inside.access"]
    notify(running, UUri("cloud", 1, 1, 0), b"3")
    eventually(lambda: len(received) == 2, "two notifications")
    assert payloads(received) == [b"1", b"3"]
    assert running.streamer.ledger().denied == 1


def test_a_transport_that_refuses_a_listener_changes_nothing(
    running: RunningStreamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = running.streamer.transports[OUTSIDE]
    before = repr(running.streamer.transports[INSIDE]), running.streamer.routes()
    running.write(PLUGINS, authorities={INSIDE: ("hpc", "car", "van"), OUTSIDE: ("cloud", "fleet")})

    def refuse(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "too many listeners")

    monkeypatch.setattr(outside, "register_listener", refuse)
    with pytest.raises(UStatusError, match="too many listeners"):
        reload(running)
    assert (repr(running.streamer.transports[INSIDE]), running.streamer.routes()) == before


# --- by request, and by signal ---------------------------------------------------------------------------------------


def test_an_invalid_file_changes_nothing_and_gives_the_reason(running: RunningStreamer) -> None:
    running.write(PLUGINS, "[egress.outsid]")
    with pytest.raises(AdminError, match="nothing has changed") as refused:
        running.control.handle_request(ReloadRequest(str(running.path)))
    assert refused.value.code is UCode.INVALID_ARGUMENT
    [problem] = refused.value.problems
    assert "did you mean 'outside'?" in problem


def test_a_client_gets_the_keys_that_need_a_restart(running: RunningStreamer) -> None:
    running.write(PLUGINS, THIRD)
    with pytest.raises(AdminError) as refused:
        running.control.handle_request(ReloadRequest(str(running.path)))
    assert refused.value.code is UCode.FAILED_PRECONDITION
    assert refused.value.problems == ("endpoints.third: needs a restart",)


def test_a_signal_reloads_the_file_of_the_last_successful_reload(
    running: RunningStreamer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running.write(PLUGINS, authorities={OUTSIDE: ("cloud", "fleet")})
    other = running.path.rename(tmp_path / "other.toml")
    assert running.control.handle_request(ReloadRequest(str(other))) == ["endpoints.outside.authorities"]
    other.write_text(other.read_text().replace('"fleet"', '"fleet", "van"'))
    running.control.on_sighup()
    assert running.streamer.routes().endpoints[1].authorities == ("cloud", "fleet", "van")
    other.write_text("nonsense")
    running.control.on_sighup()
    assert "control.reload_refused" in [each.getMessage() for each in caplog.records]
    assert running.streamer.routes().endpoints[1].authorities == ("cloud", "fleet", "van")


def test_publications_continue_during_a_reload(running: RunningStreamer) -> None:
    from ustreamer.uprotocol.pb import usubscription_v3 as pb
    from ustreamer.uprotocol.rpc import RpcClient
    from ustreamer.uprotocol.uattributes import UPayloadFormat
    from ustreamer.uprotocol.uuid import UuidSource

    fleet = running.app(OUTSIDE, "cloud")
    received = running.listen(OUTSIDE, "cloud", None)
    rpc = RpcClient(fleet, UUri("cloud", 7, 1, 0), UuidSource(lambda: new_id().time_ms))
    sent_request = pb.SubscriptionRequest(topic=TOPIC.to_pb()).SerializeToString()
    rpc.call(UUri("hpc", 0, 3, 1), sent_request, UPayloadFormat.PROTOBUF)
    sensor = running.app(INSIDE, "hpc")
    for round_ in range(20):
        running.write(PLUGINS, authorities={OUTSIDE: ("cloud", f"fleet{round_}")})
        sensor.send(publish(new_id(), TOPIC, b"%d" % round_))
        reload(running)
    eventually(lambda: payloads(received) == [b"%d" % each for each in range(20)], "every publication, once")
