# SPDX-License-Identifier: Apache-2.0
"""A peer that is refused again and again is an intrusion, with a begin, a rate and an end."""

from pathlib import Path

import pytest

from tests.host.running_streamer import OUTSIDE, RunningStreamer
from tests.host.waiting import eventually
from ustreamer.core.base.intrusions import MAX_LISTED, MAX_TRACKED, UNKNOWN, Intrusion, IntrusionMonitor
from ustreamer.host.cli.main import main
from ustreamer.host.observe.metrics import metric_families
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.umessage import notification
from ustreamer.uprotocol.uuri import UUri

NS_PER_S = 1_000_000_000


class Watch:
    """A monitor that observes once a second."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.monitor = IntrusionMonitor()
        self.second = self.logins = 0
        self._log = caplog
        self._log.set_level("INFO")

    def observe(self, total: dict[str, int], **by_reason: dict[str, int]) -> list[str]:
        """The counters of endpoint `cloud` a second later; the events that were logged."""
        self._log.clear()
        self.second += 1
        by_peer = {(reason, peer): count for reason, of in by_reason.items() for peer, count in of.items()}
        counters = {f"refused_{reason}": count for reason, count in total.items()}
        counters["authentications_denied"] = self.logins
        self.monitor.observe(
            {"cloud": counters}, {"cloud": by_peer}, self.second * NS_PER_S, self.second * 1000
        )
        return [
            " ".join(str(vars(each)[name]) for name in ("msg", "endpoint", "reason", "peer", "refusals"))
            for each in self._log.records
        ]


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> Watch:
    return Watch(caplog)


def test_a_peer_that_is_refused_often_is_reported_once_with_its_end(watch: Watch) -> None:
    assert watch.observe({"access": 0}) == []
    assert watch.observe({"access": 15}, access={"phone": 15}) == []
    assert watch.observe({"access": 30}, access={"phone": 30}) == [
        "streamer.intrusion_began cloud access phone 30"
    ]
    for count in (130, 230, 330):
        assert watch.observe({"access": count}, access={"phone": count}) == []
    assert watch.monitor.present() == (Intrusion("cloud", "access", "phone", 330, 100.0, 3000),)
    ended = [watch.observe({"access": 330}, access={"phone": 330}) for _ in range(40)]
    assert [each for each in ended if each] == [["streamer.intrusion_ended cloud access phone 330"]]
    assert watch.monitor.present() == ()
    assert watch.monitor.begun() == {("cloud", "access"): 1}


def test_refusals_at_a_low_rate_are_no_intrusion(watch: Watch) -> None:
    for count in range(0, 300, 3):
        assert watch.observe({"access": count}, access={"phone": count}) == []


def test_five_failed_logins_in_a_minute_are_an_intrusion(watch: Watch) -> None:
    """The limit of logins is 10 in a minute."""
    found = [watch.observe({}, login_failed={"192.0.2.1": second // 6}) for second in range(40)]
    assert [each for each in found if each] == [["streamer.intrusion_began cloud login_failed 192.0.2.1 5"]]


def test_refusals_without_a_known_peer_are_those_of_an_unknown_one(watch: Watch) -> None:
    watch.observe({"attachment": 0, "access": 0})
    assert watch.observe({"attachment": 25, "access": 10}, access={"phone": 10}) == [
        f"streamer.intrusion_began cloud attachment {UNKNOWN} 25"
    ]


def test_an_attack_from_many_addresses_is_one_of_unknown_peers(watch: Watch) -> None:
    watch.observe({"too_many": 0})
    peers = {f"192.0.2.{number}": 1 for number in range(199)}
    assert watch.observe({"too_many": 199}, too_many=peers) == []
    peers["192.0.2.199"] = 1
    assert watch.observe({"too_many": 200}, too_many=peers) == [
        f"streamer.intrusion_began cloud too_many {UNKNOWN} 200"
    ]


def test_guesses_from_many_addresses_are_an_intrusion(watch: Watch) -> None:
    """Each address stays below its limit."""
    found = []
    for count in (1, 2):
        peers = {f"192.0.2.{number}": count for number in range(25)}
        watch.logins = 25 * count
        found += watch.observe({}, login_failed=peers)
    assert found == [f"streamer.intrusion_began cloud login_failed {UNKNOWN} 50"]


def test_one_loud_peer_is_not_many(watch: Watch) -> None:
    for count in (1000, 2000, 3000):
        watch.observe({"access": count}, access={"phone": count})
    for _ in range(40):  # its intrusion ends
        assert watch.observe({"access": 3000}, access={"phone": 3000}) in (
            [],
            ["streamer.intrusion_ended cloud access phone 3000"],
        )
    assert watch.monitor.begun() == {("cloud", "access"): 1}


def test_work_that_other_streamers_do_is_no_intrusion(watch: Watch) -> None:
    watch.observe({"deferred_to_peer": 0, "duplicate": 0})
    assert watch.observe({"deferred_to_peer": 1000, "duplicate": 1000}) == []


def test_an_intrusion_is_found_after_a_counter_has_started_again(watch: Watch) -> None:
    """A process that is started again, and a peer that was forgotten, count from 0."""
    for count in range(0, 90, 3):
        assert watch.observe({}, access={"phone": count}) == []
    assert watch.observe({}, access={"phone": 3}) == []
    assert watch.observe({}, access={"phone": 30}) == ["streamer.intrusion_began cloud access phone 30"]


def test_what_is_watched_and_listed_is_bounded(watch: Watch) -> None:
    for begin in range(0, 3 * MAX_TRACKED, 256):
        watch.observe({}, access={f"peer{begin + number}": 50 for number in range(256)})
    assert len(watch.monitor._watched) == MAX_TRACKED
    assert len(watch.monitor.present()) == MAX_LISTED


def test_a_peer_that_was_forgotten_is_no_new_intrusion(watch: Watch) -> None:
    """Its count is that since the start of the endpoint."""
    peers = {f"peer{number}": 50 for number in range(MAX_TRACKED + 1)}
    watch.observe({}, access=peers)
    began = sum(watch.monitor.begun().values())
    watch.observe({}, access=peers)
    assert sum(watch.monitor.begun().values()) == began


def test_a_streamer_names_the_authority_whose_messages_are_denied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunningStreamer(tmp_path, "[[endpoints.outside.access]]\nallow = false") as running:
        app = running.app(OUTSIDE, "cloud")
        for _ in range(30):
            app.send(notification(new_id(), UUri("cloud", 7, 1, 0x8001), UUri("hpc", 9, 1, 0)))
        eventually(lambda: bool(running.streamer.intrusions.present()), "the intrusion")
        [found] = running.streamer.statistics().intrusions
        assert (found.endpoint, found.reason, found.peer) == (OUTSIDE, "access", "cloud")
        [began] = [each for each in caplog.records if each.getMessage() == "streamer.intrusion_began"]
        assert vars(began)["refusals"] >= 20
        assert main(["top", str(running.path), "--once"]) == 0
        [line] = [each for each in capsys.readouterr().out.splitlines() if each.startswith("refused: ")]
        assert line.startswith("refused: cloud at outside: 30 refusals (access) since ")
        [metric] = [
            each
            for each in metric_families(running.streamer.metrics_snapshot(0))
            if each.name == "ustreamer_intrusion_peers"
        ]
        assert {each.labels["endpoint"]: each.value for each in metric.samples} == {
            "inside": 0,
            "outside": 1,
            "self": 0,
        }
