# SPDX-License-Identifier: Apache-2.0
"""The whole test kit of the standard against a started streamer."""

import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.conformance.kit_trials import failed_cases
from tests.conformance.mutants import MUTANTS
from tests.conformance.subject import KIT, KitRun, run_kit, running_subject
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.two_streamers import open_router

TOO_SLOW = ["a_call_without_an_answer_is_repeated"]
"""It takes 5 minutes; test_remote_service.py shows the rule in virtual time."""


def test_every_case_of_the_kit_passes(tmp_path: Path) -> None:
    junit, page = tmp_path / "result.xml", tmp_path / "result.html"
    with running_subject() as streamer:
        run = run_kit(streamer, "--junit", str(junit), "--page", str(page))
    # Repeats the failed cases at the end: a long output may be cut in the middle.
    assert (run.code, run.failed) == (0, []), f"{run.output}\n{streamer.output}\nfailed: {run.failed}"
    assert run.not_applicable == TOO_SLOW
    suite = ET.parse(junit).getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    assert page.read_text(encoding="utf-8").count('<tr class="passed">') == int(suite.get("tests", 0)) - 1


def test_a_streamer_with_one_network_leaves_out_what_needs_two() -> None:
    with running_subject() as streamer:
        run = run_kit(streamer, "--connect-other", "", "--other", "", "--subject", "streamer")
    assert (run.code, run.failed) == (0, []), run.output
    assert "every_publication_is_forwarded_in_order" in run.not_applicable
    assert "--connect-other names the network of that authority" in run.output


def test_a_wrong_authority_ends_with_69_and_names_it() -> None:
    with running_subject() as streamer:
        run = run_kit(streamer, "--authority", "tck.wrong", "--deadline", "1")
    assert run.code == 69, run.output
    assert "--authority names the authority of the subject, now 'tck.wrong'" in run.output


def test_a_mutant_is_found() -> None:
    found = failed_cases(MUTANTS[0])  # cases run in parallel: the first that ends
    finders = {
        "a_caller_of_unsubscribe_is_no_longer_listed",
        "unsubscribing_without_a_subscription_means_unsubscribed",
    }
    assert found
    assert set(found) <= finders


def test_another_usubscription_is_judged_by_what_it_does() -> None:
    """That process lists its subscriptions, and has no notifications."""
    (port,) = tcp_ports(1)
    command = [sys.executable, "-m", "tests.e2e.subscriptions.usubscription_process", str(port), "3"]
    cases = ["is_listed_as_subscriber", "a_subscriber_is_notified_of_its_subscription"]
    with ExitStack() as stack:
        stack.enter_context(closing(open_router(port)))
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        done = subprocess.run(
            [KIT, "--connect", f"tcp/127.0.0.1:{port}", "--deadline", "3", *cases],
            capture_output=True,
            text=True,
            check=False,
        )
    run = KitRun(done.returncode, done.stdout + done.stderr)
    assert (run.code, run.failed) == (1, ["a_subscriber_is_notified_of_its_subscription[v3]"]), run.output
    assert "ok   a_caller_of_subscribe_is_listed_as_subscriber[v3]" in run.output
    assert "version 4 (FetchSubscriptions in version 4: no answer)" in run.output
