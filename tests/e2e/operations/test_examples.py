# SPDX-License-Identifier: Apache-2.0
"""The examples run, and their configurations are valid. The figures are those that the examples print."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from examples.rig import Figures, on_ports
from tests.e2e.rigs.examples import PORT, REPO, RUN_S, command_of, ports_of, run_example
from tests.e2e.rigs.streamer import run_command

if TYPE_CHECKING:
    from tests.chromium import Browser, needs_chromium
else:
    from plugins.wamp.tests.chromium import Browser, needs_chromium

FOLDERS: Final = sorted(path.parent for path in REPO.glob("examples/*/__main__.py"))
CONFIGURATIONS: Final = sorted(REPO.glob("examples/*/*.toml"))


def shown_but_not_printed(name: str, output: str) -> list[str]:
    """The lines of the page that a run has not printed; numbers may differ, and `...` stands for any text."""
    page = (REPO / "examples" / name / "README.md").read_text(encoding="utf-8")
    shown = page.split("```text\n")[1].split("```")[0].splitlines()
    return [line for line in shown if not re.search(_pattern(line), output, re.MULTILINE)]


def _pattern(line: str) -> str:
    text = re.escape(line).replace(r"\.\.\.", ".*")
    text = re.sub(r"\d+", r"\\d+", text)
    return "^" + re.sub(r"(\\ )+", " +", text) + "$"


def test_a_line_that_is_not_printed_is_found() -> None:
    assert shown_but_not_printed("minimal", "") != []
    assert re.search(_pattern("a  1 ... b"), "a 22 x y b")
    assert not re.search(_pattern("a  1 ... b"), "a x x y b")


def test_each_folder_has_what_a_reader_needs() -> None:
    assert [folder.name for folder in FOLDERS] == ["dashboard", "fleet", "minimal", "redundant", "vehicle"]
    for folder in FOLDERS:
        page = (folder / "README.md").read_text(encoding="utf-8")
        assert "(picture.svg)" in page
        assert f"make example NAME={folder.name}" in page
        assert "## What to try next" in page
        assert f"({folder.name}/README.md)" in (REPO / "examples/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("arguments", "name"), [((), "vehicle"), (("NAME=minimal",), "minimal")])
def test_make_runs_the_named_example(arguments: tuple[str, ...], name: str) -> None:
    """Some shells set NAME to that of the machine; it is not the name of an example."""
    shown = subprocess.run(
        ["make", "--no-print-directory", "-n", "example", *arguments],
        cwd=REPO,
        env={key: value for key, value in os.environ.items() if key not in ("ARGS", "MAKEFLAGS")}
        | {"NAME": "workshop"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines()[-1].split() == [".venv/bin/python", "-m", f"examples.{name}"]


def test_the_smallest_example_loses_nothing_and_answers_a_call() -> None:
    done = run_example("minimal", "--events", "100")
    assert done.rows == {"up://chassis/1234/1/8001": Figures(100, 0, 100, 0, 0)}, done
    assert "answered b'test'" in done.output
    assert shown_but_not_printed("minimal", done.output) == []
    assert done.code == 0


def test_the_vehicle_shows_each_of_its_ecus() -> None:
    done = run_example("vehicle", "--events", "5")
    assert done.code == 0, done
    assert {name.partition(",")[0] for name in done.rows} == {"brakes", "steering", "camera", "battery"}
    assert all(row.received >= 5 and row.lost == row.twice == 0 for row in done.rows.values())
    assert "a late subscriber has the light: [b'\\x01']" in done.output
    assert " valid, 0 invalid" in done.output
    assert shown_but_not_printed("vehicle", done.output) == []


def test_the_vehicle_reports_an_ecu_that_is_missing() -> None:
    done = run_example("vehicle", "--events", "1000000", "--seconds", "1")
    assert done.code == 1
    assert "missing: brakes, E2E P04: " in done.errors


def test_the_fleet_sends_the_cloud_only_the_rate_that_it_requested() -> None:
    done = run_example("fleet", "--events", "200")
    [row] = done.rows.values()
    assert done.code == 0, done
    assert (row.published, row.lost, row.twice) == (200, 0, 0)
    assert row.throttled == row.published - row.received
    assert 0 < row.received < 100  # at 10 of 100 Hz; a busy machine publishes for longer
    [over_the_link] = re.findall(r"over the mobile network: (\d+) of 200", done.output)
    assert row.received < int(over_the_link) < 150
    assert shown_but_not_printed("fleet", done.output) == []


def test_when_one_of_two_gateways_is_killed_the_other_one_forwards() -> None:
    """A kill loses messages of some ms. A busy machine is slower, but does not need the lease of Zenoh: 7.5 s."""
    done = run_example("redundant", "--events", "400")
    assert done.code == 0, done
    both, killed, left = done.rows.values()
    assert both == left == Figures(400, 0, 400, 0, 0), done
    assert killed.lost + killed.received == killed.published >= 400, done
    assert killed.lost < 5 * 200, done  # 5 s
    assert killed.twice < 100, done
    assert shown_but_not_printed("redundant", done.output) == []


def test_when_one_of_two_gateways_is_stopped_nothing_is_lost() -> None:
    done = run_example("redundant", "--events", "200", "--stop")
    assert done.code == 0, done
    assert [row.lost for row in done.rows.values()] == [0, 0, 0]


def test_a_dashboard_receives_the_rate_that_it_requested() -> None:
    done = run_example("dashboard", "--events", "200", "--limit", "20")
    assert done.code == 0, done
    [(name, row)] = done.rows.items()
    assert name == "at most 20 Hz"
    assert (row.published, row.lost, row.twice) == (200, 0, 0)
    assert row.throttled > 50
    assert shown_but_not_printed("dashboard", done.output) == []


@needs_chromium
def test_the_page_of_the_dashboard_shows_values_at_the_rate_of_its_slider(tmp_path: Path) -> None:
    ports = ports_of("dashboard")
    example = subprocess.Popen(
        command_of("dashboard", ports, "--events", "100000"), cwd=REPO, stdout=subprocess.PIPE, text=True
    )
    browser = Browser(tmp_path / "profile")
    try:
        assert example.stdout is not None
        [url] = re.findall(r"http\S+", next(line for line in example.stdout if line.startswith("open ")))
        browser.command("Page.navigate", url=url)
        browser.until("document.getElementById('state')?.textContent === 'subscribed'")
        browser.until("Number(document.getElementById('rate').textContent) >= 3")
        assert browser.run("Number(document.getElementById('rate').textContent)") <= 10  # the slider is at 5
        browser.run("document.getElementById('limit').value = 80; document.getElementById('limit').oninput()")
        browser.until("Number(document.getElementById('rate').textContent) > 15")
        assert browser.run("Number(document.getElementById('speed').textContent)") >= 13.9
        assert browser.complaints == []
        example.send_signal(signal.SIGINT)
        assert example.wait(RUN_S) == 130  # without a traceback
    finally:
        browser.close()
        example.kill()
        example.communicate()


@pytest.mark.parametrize(
    ("name", "kind", "shown"),
    [
        ("minimal", socket.SOCK_STREAM, 7447),
        ("minimal", socket.SOCK_DGRAM, 30501),
        ("vehicle", socket.SOCK_DGRAM, 30500),
        ("redundant", socket.SOCK_STREAM, 7448),
        ("dashboard", socket.SOCK_STREAM, 8081),
    ],
)
def test_a_port_in_use_is_a_sentence(name: str, kind: socket.SocketKind, shown: int) -> None:
    ports = ports_of(name)
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", ports[shown]))
        if kind is socket.SOCK_STREAM:
            other.listen()
        done = run_example(name, ports=ports)
    assert done.code == 1
    assert "Address already in use" in done.errors
    assert "--ports uses other ports" in done.errors
    assert "Traceback" not in done.errors


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_configuration_of_an_example_is_valid(file: Path) -> None:
    checked = run_command("check", "--offline", "--strict", file)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_port_of_an_example_can_be_another_one(folder: Path) -> None:
    """Two examples, or two tests, run at the same time."""
    ports = ports_of(folder.name)
    files = [*folder.glob("*.toml"), *folder.glob("*.html")]
    moved = "".join(on_ports(file.read_text(encoding="utf-8"), ports) for file in files)
    assert {int(port) for port in PORT.findall(moved)} == set(ports.values())
