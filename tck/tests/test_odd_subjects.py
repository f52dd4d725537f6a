# SPDX-License-Identifier: Apache-2.0
"""Subjects that answer anything: the kit judges them, and never fails itself."""

import json
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import zenoh
from uprotocol_tck.cli import main
from uprotocol_tck.probe import Received
from uprotocol_tck.uprotocol import PROTOBUF, Attributes, Kind, Uri, new_uuid

Answer = Callable[[Attributes], tuple[Attributes, bytes] | None]


@contextmanager
def _subject(answer: Answer) -> Iterator[str]:
    """A node that answers every Request to hpc.vin1. The locator of its network."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        locator = f"tcp/127.0.0.1:{free.getsockname()[1]}"
    config = zenoh.Config()
    config.insert_json5("listen/endpoints", json.dumps([locator]))
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config) as session:

        def respond(sample: zenoh.Sample) -> None:
            assert sample.attachment is not None
            request = Attributes.decode(sample.attachment.to_bytes()[1:])
            if answered := answer(request):
                head, payload = answered
                session.put(head.key, payload, attachment=b"\x01" + head.encode())

        session.declare_subscriber("up/*/*/*/*/*/hpc.vin1/0/0/*/*", respond)
        yield locator


def _response(request: Attributes, **changed: object) -> Attributes:
    assert request.sink is not None
    head = Attributes(
        new_uuid(),
        Kind.RESPONSE,
        request.sink,
        request.source,
        priority=request.priority,
        ttl=request.ttl,
        reqid=request.id,
        payload_format=PROTOBUF,
    )
    return head._replace(**changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("payload", [b"", b"\xff", b"\x0a\x01\xff", b"\x1b[31mred\x07"])
def test_a_subject_with_payloads_of_another_type_fails(
    payload: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with _subject(lambda request: (_response(request), payload)) as locator:
        code = main(["--connect", locator, "--other", "tck.other", "--deadline", "0.2", "--quiet", "0.01"])
    printed = capsys.readouterr().out
    assert code == 1
    assert "the case itself failed" not in printed
    assert re.search(r"^FAIL a_caller_of_subscribe_is_listed_as_subscriber", printed, re.MULTILINE)
    assert "\x1b" not in printed


def test_a_code_that_is_no_ucode_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with _subject(lambda request: (_response(request, commstatus=99), b"")) as locator:
        assert main(["--connect", locator, "--deadline", "0.5"]) == 69
    assert "version 3: UNKNOWN" in capsys.readouterr().err


def test_a_code_that_is_no_ucode_fails_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    """FetchSubscriptions is answered OK, everything else with a number that is no UCode."""

    def answer(request: Attributes) -> tuple[Attributes, bytes]:
        assert request.sink is not None
        return _response(request, commstatus=0 if request.sink.resource == 3 else 99), b""

    with _subject(answer) as locator:
        code = main(["--connect", locator, "--deadline", "0.3", "a_caller_of_subscribe", "an_unknown_method"])
    printed = capsys.readouterr().out
    assert code == 1
    assert "the commstatus 99 is no UCode" in printed
    assert "the case itself failed" not in printed


def test_a_failure_with_an_unknown_code_in_the_inbox_names_the_number() -> None:
    head = Attributes(
        new_uuid(), Kind.RESPONSE, Uri("hpc.vin1", 0, 3, 1), Uri("hpc.vin1", 5, 1), commstatus=99
    )
    received = Received("up/key", zenoh.Priority.DATA, b"", b"", head, 0.0, 0)
    assert str(received).endswith(", commstatus 99")


FULL = ("--junit", "/dev/full")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("a_response_belongs",), 0),
        (("a_response_belongs", *FULL), 74),
        (("a_caller_of_subscribe", *FULL), 1),
    ],
)
def test_a_report_that_was_not_written_ends_with_74_unless_a_case_failed(
    arguments: Sequence[str], expected: int
) -> None:
    with _subject(lambda request: (_response(request), b"")) as locator:
        assert main(["--connect", locator, "--deadline", "0.3", *arguments]) == expected


@pytest.mark.parametrize("failing", [True, False])
def test_an_interrupted_run_ends_with_130_also_if_a_case_failed(
    failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt follows the first outcome."""

    def interrupt(_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("uprotocol_tck.cli.outcome_lines", interrupt)
    case = "a_caller_of_subscribe" if failing else "a_response_belongs"
    with _subject(lambda request: (_response(request), b"")) as locator:
        assert main(["--connect", locator, "--deadline", "0.3", case, *FULL]) == 130


def test_a_subject_of_version_4_alone_is_judged_by_version_4(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(request: Attributes) -> tuple[Attributes, bytes] | None:
        assert request.sink is not None
        return (_response(request), b"") if request.sink.version == 4 else None

    with _subject(answer) as locator:
        assert (
            main(["--connect", locator, "--deadline", "0.3", "fetch_subscriptions", "a_response_belongs"])
            == 1
        )
    printed = capsys.readouterr().out
    assert "n/a  fetch_subscriptions_lists_in_the_same_order_each_time" in printed
    assert "ok   a_response_belongs_to_its_request" in printed
