# SPDX-License-Identifier: Apache-2.0
"""An operator sees who attacks the sessions: guesses of passwords and floods of connections, by address."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.car import SECTION, Car
    from tests.conftest import OPENED
else:
    from plugins.wamp.tests.car import SECTION, Car
    from plugins.wamp.tests.conftest import OPENED


@pytest.fixture(params=[False, True], ids=["thread", "process"])
def car(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Car]:
    few = "max_sessions_per_address = 8\nmax_connects_per_s = 1000"
    car = Car(tmp_path, section=f"{SECTION}\n{few}", in_process=request.param)
    yield car
    OPENED.close()
    car.stop()


def intrusions(car: Car) -> dict[str, str]:
    """The peer of each reason."""
    return {each.reason: each.peer for each in car.streamer.intrusions.present() if each.endpoint == "wamp"}


def test_guesses_of_a_password_are_an_intrusion_of_their_address(
    car: Car, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    details = {"roles": {"publisher": {}}, "authmethods": ["ticket"], "authid": "driver"}
    for _ in range(5):
        peer = car.peer()
        assert peer.request(1, "realm1", details)[0] == 4
        assert peer.request(5, "guess", {})[0] == 3
    wait_until(lambda: intrusions(car) == {"login_failed": "127.0.0.1"})
    failed = [vars(each) for each in caplog.records if each.getMessage() == "wamp.login_failed"]
    assert [(each["peer"], each["authid"]) for each in failed] == [("127.0.0.1", "driver")] * 5
    assert "guess" not in caplog.text
    wait_until(lambda: car.wamp.statistics()["authentications_denied"] == 5)


def test_a_flood_of_connections_is_an_intrusion_of_its_address(car: Car) -> None:
    peers = [car.peer().join() for _ in range(8)]
    for _ in range(30):
        with pytest.raises(Exception, match="HTTP 503"):
            car.peer()
    wait_until(lambda: intrusions(car).get("too_many") == "127.0.0.1")
    assert all(peer.request(34, 1, 7)[0] == 8 for peer in peers), "the sessions go on"
