# SPDX-License-Identifier: Apache-2.0
"""The options of the command: each wrong one ends with 2, and its message has the option, the value and the right form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from uprotocol_tck.arguments import parser
from uprotocol_tck.cli import main

CONNECT = ("--connect", "tcp/127.0.0.1:1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "--connect is missing; expected"),
        (
            ["--connect", "nonsense"],
            "argument --connect: 'nonsense' is no Zenoh locator; expected PROTOCOL/HOST:PORT",
        ),
        (["--connect", "tcp/127.0.0.1"], "argument --connect: 'tcp/127.0.0.1' is no Zenoh locator"),
        (["--connect", "tcp/127.0.0.1:70000"], "argument --connect: 'tcp/127.0.0.1:70000'"),
        (["--connect", "foo/127.0.0.1:1"], "argument --connect: 'foo/127.0.0.1:1'"),
        (
            [*CONNECT, "--other", "a", "--connect-other", "x"],
            "argument --connect-other: 'x' is no Zenoh locator",
        ),
        ([*CONNECT, "--connect-other", "tcp/127.0.0.1:2"], "--connect-other needs --other"),
        ([*CONNECT, "--authority", "a/b"], "argument --authority: 'a/b' is no authority; expected 1 to 128"),
        ([*CONNECT, "--authority", "a" * 129], "is no authority"),
        ([*CONNECT, "--authority", ""], "argument --authority: '' is no authority"),
        ([*CONNECT, "--other", "hpc.vin1"], "--other hpc.vin1: expected another authority"),
        (
            [*CONNECT, "--dead-letters", "nowhere"],
            "argument --dead-letters: 'nowhere' is no address; expected //",
        ),
        ([*CONNECT, "--dead-letters", "//a/1/1/18000"], "argument --dead-letters: '//a/1/1/18000'"),
        (
            [*CONNECT, "--wamp", "tcp://a:1"],
            "argument --wamp: 'tcp://a:1' is no RawSocket address; expected rs://",
        ),
        ([*CONNECT, "--wamp", "rs://a:99999"], "argument --wamp: 'rs://a:99999'"),
        ([*CONNECT, "--wamp-user", "a:b"], "--wamp-user needs --wamp"),
        (
            [*CONNECT, "--wamp", "rs://a:1", "--wamp-user", "a"],
            "argument --wamp-user: 'a' is no login; expected",
        ),
        ([*CONNECT, "--wamp", "rs://a:1", "--wamp-prefix", "a b"], "argument --wamp-prefix: 'a b'"),
        ([*CONNECT, "--deadline", "0"], "argument --deadline: '0' is not a number from 0.01 to 3600"),
        ([*CONNECT, "--quiet", "nan"], "argument --quiet: 'nan' is not a number"),
        ([*CONNECT, "--jobs", "0"], "argument --jobs: '0' is not a number from 1 to 64"),
        ([*CONNECT, "--jobs", "1.5"], "argument --jobs: '1.5' is not a number"),
        ([*CONNECT, "--with", "v3", "--without", "v3"], "--with and --without v3: expected only one of them"),
        (
            [*CONNECT, "--junit", "no/such/file"],
            "'no/such/file' cannot be written: there is no directory no/such",
        ),
        ([*CONNECT, "--page", "."], "argument --page: '.' cannot be written: it is a directory"),
        ([*CONNECT, "no-such-case"], "no case has one of ['no-such-case']"),
    ],
)
def test_a_wrong_use_is_explained(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_every_option_has_a_help_and_its_page_has_it() -> None:
    text = parser().format_help()
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    actions = [each for each in parser()._actions if each.dest != "help"]
    assert [each.dest for each in actions if not each.help] == []
    options = [each.option_strings[0] for each in actions if each.option_strings]
    assert [each for each in options if each not in text] == []
    assert [each for each in options if each not in page] == []


def test_the_help_has_every_exit_code_of_the_page() -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for code in (0, 1, 2, 69, 74, 130):
        assert str(code) in parser().format_help().split()  # lines are as long as the terminal is wide
        assert f"| {code} |" in page


@pytest.mark.parametrize(
    "locator", ["tcp/[::1]:7447", "tls/hpc.local:1", "unixsock-stream/run/z.sock", "tcp/a:1?b=c#d"]
)
def test_each_form_of_a_locator_is_accepted(locator: str) -> None:
    assert parser().parse_args(["--connect", locator]).connect == locator


def test_a_prefix_of_wamp_ends_with_a_dot() -> None:
    assert parser().parse_args([]).wamp_prefix == "com.example.tck."
    assert parser().parse_args(["--wamp-prefix", "org.mine"]).wamp_prefix == "org.mine."


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_utf_8_gets_an_escape(encoding: str) -> None:
    script = "import sys; from uprotocol_tck.cli import _note, main; main(['--list', 'DSP-20']); print('\\u2713'); _note('\\u2713')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        check=True,
    )
    assert done.stdout.endswith(b"\\u2713\n")
    assert done.stderr == b"uprotocol-tck: \\u2713\n"


def test_a_reader_that_has_enough_ends_the_list() -> None:
    command = f"{sys.executable} -m uprotocol_tck --list | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2
