# SPDX-License-Identifier: Apache-2.0
"""Runs of the test kit that have company, few rights, or an early end."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from xml.etree import ElementTree as ET

import pytest
import zenoh

from tests.conformance.subject import (
    KIT,
    REPO,
    KitRun,
    SubjectSettings,
    SubjectStreamer,
    run_kit,
    running_subject,
)
from tests.e2e.rigs.ports import tcp_ports

REMOTE = "req~usubscription-subscribe-remote-response~1"
OUTAGE = "a_forwarded_subscribe_is_repeated_when_the_network_returns"
RESTART = "subscriptions_remain_after_a_restart[v4]"
END_S = 60.0


def test_two_runs_at_a_time_do_not_disturb_each_other() -> None:
    """Both play the other device, take its network away, and restart the streamer."""
    with running_subject() as streamer, ThreadPoolExecutor(2) as pool:
        cases = (REMOTE, OUTAGE, RESTART)
        runs = [each.result() for each in [pool.submit(run_kit, streamer, *cases) for _ in range(2)]]
    for run in runs:
        assert (run.code, run.failed, run.not_judged) == (0, [], []), run.output
    assert any("another run of the kit is at the subject" in run.output for run in runs)


def test_the_kit_creates_its_topics_where_the_subject_enforces_it() -> None:
    cases = (
        "LIF-",
        "req~usubscription-subscribe~1",
        "req~usubscription-change-topic~1",
        "every_publication_is",
        "DSP-5",
    )
    with running_subject(settings=SubjectSettings(lifecycle="enforce")) as streamer:
        run = run_kit(streamer, *cases)
    assert (run.code, run.failed) == (0, []), run.output
    assert "answered NOT_FOUND: the kit calls CreateTopic for its topics" in run.output


def test_what_the_user_of_wamp_may_not_publish_is_not_judged() -> None:
    with running_subject(settings=SubjectSettings(may_publish="com.other.")) as streamer:
        run = run_kit(streamer, "WSU-")
        other = run_kit(streamer, "--wamp-prefix", "com.other.tck", "WSU-")
    assert (run.code, run.failed) == (0, []), run.output
    assert sorted(run.not_judged) == [
        "a_second_subscribe_returns_the_existing_id",
        "a_subscriber_receives_the_events_of_its_topics",
        "after_unsubscribed_no_event_comes",
    ]
    assert "does not let the user of --wamp-user publish com.example.tck.t" in run.output
    assert (other.code, other.failed, other.not_judged) == (0, [], []), other.output


@contextmanager
def _slow(streamer: SubjectStreamer, delay_s: float) -> Iterator[list[str]]:
    """Networks that delay every message of the streamer; the options of the kit for them."""
    options = list(streamer.arguments)
    with ExitStack() as stack:
        for option in ("--connect", "--connect-other"):
            place = options.index(option) + 1
            (port,) = tcp_ports(1)
            front = stack.enter_context(_zenoh("peer", "listen", f"tcp/127.0.0.1:{port}"))
            back = stack.enter_context(_zenoh("client", "connect", options[place]))
            for source, target, seconds in ((front, back, 0.0), (back, front, delay_s)):
                queue: SimpleQueue[tuple[float, zenoh.Sample] | None] = SimpleQueue()
                thread = Thread(target=_forward, args=(queue, target), daemon=True)
                thread.start()
                source.declare_subscriber(
                    "up/**", _delayed(queue, seconds), allowed_origin=zenoh.Locality.REMOTE
                )
                stack.callback(thread.join)
                stack.callback(queue.put, None)
            options[place] = f"tcp/127.0.0.1:{port}"
        yield options


def _zenoh(mode: str, place: str, locator: str) -> zenoh.Session:
    config = zenoh.Config()
    config.insert_json5("mode", json.dumps(mode))
    config.insert_json5(f"{place}/endpoints", json.dumps([locator]))
    config.insert_json5("scouting/multicast/enabled", "false")
    return zenoh.open(config)


def _delayed(
    queue: "SimpleQueue[tuple[float, zenoh.Sample] | None]", seconds: float
) -> Callable[[zenoh.Sample], None]:
    return lambda sample: queue.put((time.monotonic() + seconds, sample))


def _forward(queue: "SimpleQueue[tuple[float, zenoh.Sample] | None]", target: zenoh.Session) -> None:
    while item := queue.get():
        due, sample = item
        time.sleep(max(0.0, due - time.monotonic()))
        target.put(
            str(sample.key_expr), sample.payload, attachment=sample.attachment, priority=sample.priority
        )


def test_a_slow_subject_has_the_time_that_it_needs() -> None:
    """Its answers take longer than the kit's expirations and pauses without it."""
    cases = (
        "every_message_has",
        "after_its_expiration_a_subscription",
        "publications_are_forwarded_at_the_rate",
    )
    with running_subject() as streamer, _slow(streamer, 1.6) as options:
        done = subprocess.run([str(KIT), *options, *cases], capture_output=True, text=True, check=False)
    run = KitRun(done.returncode, done.stdout + done.stderr)
    assert (run.code, run.failed) == (0, []), run.output
    assert run.summary.startswith("3 cases: 3 passed"), run.output


@contextmanager
def _started_kit(streamer: SubjectStreamer, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """The kit as a process that has judged its first case."""
    command = [str(KIT), *streamer.arguments, "--jobs", "1", *arguments]
    process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        assert any(line.startswith("ok ") for line in process.stdout)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reports_what_it_has_judged(tmp_path: Path, number: signal.Signals) -> None:
    junit, page = tmp_path / "result.xml", tmp_path / "result.html"
    with (
        running_subject() as streamer,
        _started_kit(streamer, "--junit", str(junit), "--page", str(page)) as process,
    ):
        process.send_signal(number)
        output = process.communicate(timeout=END_S)[0]
    assert process.returncode == 130, output
    assert "Traceback" not in output
    suite = ET.parse(junit).getroot()
    skipped = [each.get("message") for each in suite.iter("skipped")]
    assert skipped.count("not judged: the run was interrupted") > 100
    assert int(suite.get("tests", 0)) > len(skipped)
    assert suite.get("failures") == "0"
    assert "the run was interrupted" in page.read_text(encoding="utf-8")


def test_a_subject_that_stops_in_the_middle_fails_no_case(tmp_path: Path) -> None:
    junit = tmp_path / "result.xml"
    with (
        running_subject() as streamer,
        _started_kit(streamer, "--junit", str(junit), "--deadline", "1") as process,
    ):
        streamer.kill()
        output = process.communicate(timeout=END_S)[0]
    run = KitRun(process.returncode, output)
    assert (run.code, run.failed) == (69, []), output
    assert "uprotocol-tck: the subject does not answer any more, since " in output
    assert len(run.not_judged) > 100
    assert ET.parse(junit).getroot().get("failures") == "0"
