# SPDX-License-Identifier: Apache-2.0
"""The audit log: its lines, its bounds, its files. tests/e2e/routing/test_identities.py has one of a real streamer."""

import errno
import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.identity import Identity, Peer
from ustreamer.core.routing.router import RoutingDecision
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.host.runtime import audit
from ustreamer.host.runtime.audit import BURST, FILES, AuditLog
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

TOPIC, APP = UUri("cloud", 0x7001, 1, 0x8001), UUri("cloud", 0x7001, 1, 0)
DENIED = RoutingDecision((), Verdict.DENIED, UStatus(UCode.PERMISSION_DENIED, "no rule"), "access")
FLEET = Peer("cloud", frozenset({Identity("fleet")}))


class Rig:
    def __init__(self, path: Path, **limits: int) -> None:
        self.path = path
        self.time = ManualClock()
        self.log = AuditLog(path, self.time.clock().monotonic_ns, **limits)

    def deny(self, topic: UUri = TOPIC) -> None:
        self.log.on_denied("cloud", publish(UUID(0x7000, 2 << 62), topic).attributes, DENIED, FLEET)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "audit.jsonl")
    yield rig
    rig.log.close()


def test_a_line_has_who_what_and_why(rig: Rig) -> None:
    rig.deny()
    rig.log.on_subscription(Subscription(TOPIC, APP, 5), Change.SUBSCRIBED, FLEET)
    rig.log.on_subscription(Subscription(TOPIC, APP, 5), Change.PRESENT, FLEET)
    denied, subscribed = rig.lines()
    assert denied.pop("time") <= subscribed.pop("time")
    assert denied == {
        "level": "info",
        "event": "audit.denied",
        "endpoint": "cloud",
        "source": str(TOPIC),
        "sink": None,
        "type": "publish",
        "sender": "fleet",
        "denied_as": "access",
        "reason": "no rule",
    }
    assert subscribed == {
        "level": "info",
        "event": "audit.subscribed",
        "subscriber": str(APP),
        "topic": str(TOPIC),
        "period_ns": 5,
        "sender": "fleet",
    }


def test_only_the_user_of_the_streamer_can_read_it_and_a_restart_appends(rig: Rig) -> None:
    rig.deny()
    assert stat.S_IMODE(rig.path.stat().st_mode) == 0o600
    rig.log.close()
    again = Rig(rig.path)
    again.deny()
    again.log.close()
    assert len(rig.lines()) == 2


def test_log_events_of_note_are_audited_whatever_the_level_of_the_log_is(rig: Rig) -> None:
    root = logging.getLogger("ustreamer")
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        rig.log.start()
        logging.getLogger("ustreamer.control").info("dead_letters.redriven", extra={"redriven": 2, "left": 0})
        logging.getLogger("ustreamer.control").info("control.other")
        assert [(each["event"], each["redriven"]) for each in rig.lines()] == [("dead_letters.redriven", 2)]
    finally:
        rig.log.close()
        root.setLevel(level)
        for handler in root.handlers:
            handler.setLevel(logging.NOTSET)


def test_one_source_cannot_fill_it(rig: Rig) -> None:
    for _ in range(BURST + 50):
        rig.deny()
    rig.deny(TOPIC.with_resource(0x8002))
    assert len(rig.lines()) == BURST + 1
    rig.time.advance(s=1)
    rig.deny()
    assert rig.lines()[-1]["suppressed"] == 50


def test_its_files_are_bounded(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "audit.jsonl", max_bytes=1_000)
    for number in range(100):
        rig.deny(TOPIC.with_resource(0x8001 + number))
    rig.log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == FILES + 1
    assert all(each.stat().st_size <= 1_000 for each in files)
    assert rig.lines()[-1]["source"] == str(TOPIC.with_resource(0x8001 + 99))


def test_a_file_that_cannot_be_opened_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UStatusError, match=r"audit log .*absent/audit: No such file or directory"):
        Rig(tmp_path / "absent" / "audit")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UStatusError, match="audit log"):
        Rig(tmp_path / "link")


def test_a_new_file_that_cannot_be_opened_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a closed file would be that of the next socket."""
    rig = Rig(tmp_path / "audit.jsonl", max_bytes=1)
    opened = audit._open
    rig.deny()

    def refuse(path: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(audit, "_open", refuse)
    for _ in range(2):
        rig.deny()
    monkeypatch.setattr(audit, "_open", opened)
    rig.deny()
    [line] = rig.lines()
    assert line["lost"] == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "audit.jsonl",
        "audit.jsonl.1",
        "audit.jsonl.2",
    ]
    rig.log.close()
