# SPDX-License-Identifier: Apache-2.0
"""`ustreamer reload` changes the users of a running streamer: real sockets, the sessions in a thread and in a process."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ustreamer_wamp import router

from tests.waiting import wait_until
from ustreamer.host.runtime import process
from ustreamer.host.runtime.reload import ReloadRefused

if TYPE_CHECKING:
    from tests.car import MINE, SPEED, SPEED_TOPIC, Car, subscribed
    from tests.conftest import OPENED, Peer
    from tests.vehicle.test_process import child_of
else:
    from plugins.wamp.tests.car import MINE, SPEED, SPEED_TOPIC, Car, subscribed
    from plugins.wamp.tests.conftest import OPENED, Peer
    from plugins.wamp.tests.vehicle.test_process import child_of

DRIVER = '    { authid = "driver", ticket = "t", publish = ["up.wamp_2ehpc.", "com.", "up.car."] },\n'
ADDED = '    { authid = "guest", ticket = "t" },\n'


@pytest.fixture(params=[False, True], ids=["thread", "process"])
def car(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Car]:
    car = Car(tmp_path, in_process=request.param)
    yield car
    OPENED.close()
    car.stop()


def reload(car: Car, before: str, after: str) -> list[str]:
    text = car.path.read_text(encoding="utf-8")
    assert before in text
    car.path.write_text(text.replace(before, after), encoding="utf-8")
    return car.streamer.reload(process.load(car.path).config)


def login(car: Car, authid: str) -> tuple[Peer, int]:
    """A client that logs in with a ticket, and the code of the answer."""
    peer = car.peer()
    details = {"roles": {"publisher": {}}, "authmethods": ["ticket"], "authid": authid}
    assert peer.request(1, "realm1", details)[0] == 4
    return peer, peer.request(5, "t", {})[0]


def test_a_revoked_user_loses_its_session_and_the_others_stay(car: Car) -> None:
    driver, other = car.peer().join_publisher("driver"), car.peer().join()
    for each in (driver, other):
        subscribed(each, SPEED_TOPIC)
    assert reload(car, DRIVER, ADDED) == ["plugins.wamp.users"]
    goodbye = driver.receive()
    assert (goodbye[0], goodbye[2]) == (6, "wamp.close.killed")
    driver.send(6, {}, "wamp.close.goodbye_and_out")
    assert driver.close_code() == 1000
    wait_until(lambda: car.wamp.statistics()["sessions_revoked"] == 1)
    car.publish(SPEED, b"\x01")
    assert other.receive()[4] == [b"\x01"]
    assert login(car, "driver")[1] == 3
    assert login(car, "guest")[1] == 2


def test_a_user_that_may_publish_no_more_is_refused_from_then_on(car: Car) -> None:
    driver = car.peer().join_publisher("driver")
    assert driver.request(16, 1, {"acknowledge": True}, MINE, [b"\x01".hex()])[0] == 17
    reload(car, '"up.wamp_2ehpc.", ', "")

    def refused() -> bool:
        answer = driver.request(16, 2, {"acknowledge": True}, MINE, ["x"])
        return bool(answer[0] == 8 and answer[4] == "wamp.error.not_authorized")

    wait_until(refused)
    assert driver.request(16, 3, {"acknowledge": True}, "com.a", ["x"])[0] == 17


def test_rules_of_access_of_the_sessions_change_with_a_reload(car: Car) -> None:
    driver = car.peer().join_publisher("driver")
    rule = 'access = [{ allow = false, type = "publish" }, { allow = true }]\n'
    assert reload(car, "anonymous = true\n", f"anonymous = true\n{rule}") == ["plugins.wamp.access"]
    assert driver.request(16, 1, {"acknowledge": True}, MINE, ["x"])[0] == 17
    wait_until(lambda: car.streamer.ledger().denied == 1)


def test_the_other_keys_need_a_restart(car: Car) -> None:
    with pytest.raises(ReloadRefused) as refused:
        reload(
            car, "anonymous = true\n", "anonymous = false\nmax_sessions = 7\nmax_sessions_per_address = 7\n"
        )
    assert refused.value.problems == (
        "plugins.wamp: max_sessions, max_sessions_per_address: needs a restart",
    )
    car.peer().join()  # anonymous clients are still permitted


def test_users_that_could_not_be_changed_are_logged_and_their_thread_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*users: object) -> None:
        raise MemoryError

    car = Car(tmp_path)
    try:
        monkeypatch.setattr(router, "UserTable", fail)
        reload(car, DRIVER, ADDED)
        wait_until(lambda: "wamp.users_not_changed" in caplog.messages)
        assert login(car, "driver")[1] == 2, "the old users are valid"
    finally:
        OPENED.close()
        car.stop()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("wamp users")])


def test_after_its_end_the_process_has_the_changed_users(tmp_path: Path) -> None:
    car = Car(tmp_path, in_process=True)
    try:
        driver = car.peer().join_publisher("driver")
        reload(car, DRIVER, ADDED)
        assert driver.receive()[0] == 6
        before = child_of(car)
        car.process._kill()
        wait_until(lambda: car.wamp.statistics().get("process_restarts") == 1)
        assert child_of(car) != before
        assert login(car, "driver")[1] == 3
        assert login(car, "guest")[1] == 2
    finally:
        OPENED.close()
        car.stop()
