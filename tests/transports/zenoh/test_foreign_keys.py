# SPDX-License-Identifier: Apache-2.0
"""Samples with keys of another layout on a real Zenoh network, with a plain session as the foreign node.

The keys are written by hand: the older layout is that of an earlier version of the specification.
"""

import logging
from collections.abc import Iterator
from itertools import combinations
from typing import Final

import pytest
import zenoh
from zenoh import CongestionControl

from tests.transports.zenoh.sessions import endpoint, free_locator, plain_session, wait_for_link
from tests.waiting import wait_until
from ustreamer.testing.mailbox import Mailbox
from ustreamer.transports.zenoh.foreign_keys import KEY_EXPRESSIONS, MAX_COUNTED, ForeignKeyKind
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol.uuri import ANY

OLDER: Final = "up/device1/10AB/3/80CD/{}/{}/{}/{}"
OLDER_REQUEST: Final = "up/device1/403AB/3/0/device2/CD/4/B"
MESSAGE: Final = "up/device1/10AB/0/3/80CD/{}/{}/{}/{}/{}"
ATTACHMENT: Final = bytes.fromhex(
    "010a12090070e0a88e548d0111010000000000008010011a120a076465766963653110ab21180320cd8102"
)


def is_matched(publisher: zenoh.Publisher) -> bool:
    matching: bool = publisher.matching_status.matching  # type: ignore[attr-defined]
    return matching


class Scene:
    """A transport with the streamer's listeners, and a foreign node that is connected to it."""

    def __init__(self, transport: ZenohTransport, session: zenoh.Session) -> None:
        self.transport = transport
        self.session = session
        self.inbox = Mailbox()
        for sink in (None, ANY):
            transport.register_listener(ANY, sink, self.inbox)

    def put(self, key: str, times: int = 1) -> None:
        with self.session.declare_publisher(key, congestion_control=CongestionControl.BLOCK) as publisher:
            wait_until(lambda: is_matched(publisher), f"a subscription of {key[:99]!a}")
            for _ in range(times):
                publisher.put(b"x", attachment=ATTACHMENT)

    def is_subscribed(self, key: str) -> bool:
        with self.session.declare_publisher(key) as publisher:
            return is_matched(publisher)

    def wait_counts(self, older: int, other: int) -> None:
        expected = {"refused_key_older_layout": older, "refused_key_other_layout": other}
        statistics = self.transport.statistics
        wait_until(lambda: expected.items() <= statistics().items(), f"{expected}, have {statistics()}")


@pytest.fixture
def scene() -> Iterator[Scene]:
    here = free_locator()
    transport = endpoint("device2", listen=(here,))
    transport.open()
    try:
        with plain_session(connect=[here]) as session:
            wait_for_link(transport)
            yield Scene(transport, session)
    finally:
        transport.close()


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [each.__dict__ for each in caplog.records if each.message == "zenoh.foreign_key"]


def test_keys_of_the_older_layout_are_counted_and_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for key in (OLDER, OLDER_REQUEST, OLDER):
        scene.put(key)
    scene.wait_counts(older=3, other=0)
    [event] = wait_until(lambda: events(caplog), "the log")  # it follows the counter
    assert event["levelno"] == logging.WARNING
    assert (event["endpoint"], event["kind"], event["key"]) == ("backbone", "older_layout", f"'{OLDER}'")
    assert "type and instance" in str(event["why"])


@pytest.mark.parametrize(
    "key", ["up/x", "up/a/b/c/d/e/f/g", f"{OLDER}/{{}}", f"{MESSAGE}/{{}}", f"{MESSAGE}/1/2/3/4/5"]
)
def test_keys_of_no_known_layout_are_counted_as_another_kind(
    scene: Scene, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene.put(key, times=2)
    scene.put(OLDER)
    scene.wait_counts(older=1, other=2)
    wait_until(lambda: len(events(caplog)) >= 2, "the log")
    assert [each["kind"] for each in events(caplog)] == ["other_layout", "older_layout"]


def test_a_hostile_key_is_logged_escaped_and_cut(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.put("up/\n\x1b[2J\u202e" + "x" * 30_000)
    scene.wait_counts(older=0, other=1)
    [event] = wait_until(lambda: events(caplog), "the log")  # it follows the counter
    assert str(event["key"]).startswith(r"'up/\n\x1b[2J\u202exxx")
    assert len(str(event["key"])) < 250


def test_a_flood_of_foreign_keys_ends_their_subscription_only(scene: Scene) -> None:
    scene.put(OLDER, times=MAX_COUNTED)
    wait_until(lambda: not scene.is_subscribed(OLDER), "the end of the subscription")
    scene.put("up/x")
    scene.put(MESSAGE)
    scene.inbox.wait(1)
    scene.wait_counts(older=MAX_COUNTED, other=1)


def test_messages_are_no_foreign_keys(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.put(MESSAGE, times=3)
    scene.put("up/device1/10AB/0/3/80CD/device2/EF/3/4/0")
    scene.inbox.wait(3)
    scene.put(OLDER)  # behind the others on the same link
    scene.wait_counts(older=1, other=0)
    wait_until(lambda: events(caplog), "the log")
    assert [each["kind"] for each in events(caplog)] == ["older_layout"]


def test_a_key_matches_one_subscription() -> None:
    expressions = [zenoh.KeyExpr(each) for kind in ForeignKeyKind for each in KEY_EXPRESSIONS[kind]]
    messages = zenoh.KeyExpr("up/*/*/*/*/*/*/*/*/*/*")
    assert not any(one.intersects(other) for one, other in combinations((*expressions, messages), 2))
    for chunks in range(2, 20):
        key = zenoh.KeyExpr("up" + "/x" * (chunks - 1))
        assert sum(each.includes(key) for each in (*expressions, messages)) == 1
