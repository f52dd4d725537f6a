# SPDX-License-Identifier: Apache-2.0
"""Runs of the test kit that have company, few rights, or an early end."""

import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.conformance.subject import (
    KIT,
    REPO,
    KitRun,
    SubjectSettings,
    SubjectStreamer,
    run_kit,
    running_subject,
)

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
