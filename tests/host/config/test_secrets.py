# SPDX-License-Identifier: Apache-2.0
"""Secrets from the environment and from files, and what `ustreamer check` says of them. No output has a secret."""

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ustreamer.host.cli.main import main
from ustreamer.host.config.config import ConfigError
from ustreamer.host.config.json_schema import json_schema
from ustreamer.host.config.secrets import is_secret_key
from ustreamer.host.runtime import plugins, process
from ustreamer.transport_port import readable_by_all

SECRET = "hunter2-correct-horse"
TEXT = """\
authority = "hpc"
state_dir = "state"
[endpoints.backbone]
transport = "local"
network = "secrets"
authorities = ["hpc"]
[plugins.usubscription]
[plugins.wamp]
listen = "ws://127.0.0.1:0"
[[plugins.wamp.users]]
authid = "ada"
"""


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Restores the log configuration of `ustreamer` after a test that runs `ustreamer run`."""
    log = logging.getLogger("ustreamer")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = before


def written(tmp_path: Path, user: str, mode: int = 0o600) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(TEXT + user + "\n", encoding="utf-8")
    path.chmod(mode)
    return path


def users(path: Path) -> list[str]:
    section = process.load(path).config.plugins["wamp"]
    return [each.secret or each.ticket for each in section.users]  # type: ignore[attr-defined]


def test_a_secret_comes_from_the_environment_or_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADA", SECRET)
    assert users(written(tmp_path, 'secret = { env = "ADA" }')) == [SECRET]
    for content in (SECRET, f"{SECRET}\n", f"{SECRET}\r\n"):
        (tmp_path / "ticket").write_bytes(content.encode())
        assert users(written(tmp_path, 'ticket = { file = "ticket" }')) == [SECRET]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('{ env = "NOT_SET_ANYWHERE" }', "the environment variable NOT_SET_ANYWHERE is not set"),
        ('{ file = "absent" }', "absent cannot be read: No such file or directory"),
        ('{ file = "." }', "is a directory: expected a file with the secret"),
        ('{ file = "empty" }', "empty has 0 bytes, expected a secret of 1 to 65536"),
        ('{ file = "binary" }', "binary is not UTF-8 text"),
        ('{ env = "A", file = "b" }', 'expected a text, { env = "NAME" } or { file = "PATH" }'),
        ("{ env = 5 }", 'expected a text, { env = "NAME" } or { file = "PATH" }'),
        ("5", "expected a string, got the integer"),
    ],
)
def test_a_secret_that_cannot_be_read_is_a_problem_at_its_place(
    tmp_path: Path, value: str, text: str
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError) as refused:
        process.load(written(tmp_path, f"secret = {value}"))
    (problem,) = refused.value.problems
    assert (problem.path, problem.line) == ("plugins.wamp.users[0].secret", 12)
    assert text in problem.text


@pytest.mark.parametrize(
    ("mode", "user", "warned"),
    [
        (0o644, f'secret = "{SECRET}"', True),
        (0o640, f'secret = "{SECRET}"', False),
        (0o644, 'secret = { file = "secret" }', False),
        (0o644, 'secret = { file = "open" }', True),
        (0o644, 'secret = { env = "ADA" }', False),
    ],
)
def test_a_secret_that_everyone_can_read_is_a_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: int,
    user: str,
    warned: bool,
) -> None:
    monkeypatch.setenv("ADA", SECRET)
    for name, its_mode in (("secret", 0o600), ("open", 0o644)):
        (tmp_path / name).write_text(SECRET, encoding="utf-8")
        (tmp_path / name).chmod(its_mode)
    assert main(["check", "--offline", str(written(tmp_path, user, mode))]) == 0
    output = "".join(capsys.readouterr())
    assert ("every user of this machine can read the secret" in output) is warned
    assert SECRET not in output


def test_a_directory_in_place_of_a_file_is_no_file_that_everyone_can_read(tmp_path: Path) -> None:
    """The advice about such a file is chmod 600, which would close a directory."""
    tmp_path.chmod(0o755)
    assert not readable_by_all(tmp_path)
    (tmp_path / "key").touch(0o644)
    assert readable_by_all(tmp_path / "key")


MISTAKES = [
    f'secret = "{SECRET}"\niterations = "x"',
    f'secrett = "{SECRET}"',
    f'sceret = "{SECRET}"\nticket = "{SECRET}"',
    f'ticket = ["{SECRET}"]',
    f'secret = "{SECRET}',
    f'password = "{SECRET}"',
    f'secret = "{SECRET}"\nsecret = "{SECRET}"',
    f'ticket_sha256 = "{SECRET}"',
    f'derived_key = "{SECRET}"\nsalt = "x"',
    f'secret = "{SECRET}"\nderived_key = "{SECRET}"',
    f'ticket = {{ env = "A", value = "{SECRET}" }}',
]


@pytest.mark.parametrize(
    ("user", "command"),
    list(itertools.product(MISTAKES, [["check", "--offline"], ["config", "show"], ["run"]])),
)
def test_no_command_prints_the_secret_of_an_invalid_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], user: str, command: list[str]
) -> None:
    assert main([*command, str(written(tmp_path, user))]) == 78
    assert SECRET not in "".join(capsys.readouterr())


def test_the_schema_permits_sources_of_secrets() -> None:
    classes, _ = plugins.load_plugin_classes(["wamp"])
    kinds = plugins.transport_kinds(plugins.class_plugin_manager(classes))
    schema = json_schema(kinds, {name: each.Config for name, each in classes.items()})
    assert [each.get("required") for each in schema["$defs"]["User"]["properties"]["secret"]["anyOf"]] == [
        None,
        ["env"],
        ["file"],
    ]


def test_names_of_other_keys_are_no_secrets() -> None:
    assert not any(map(is_secret_key, ("topic", "receipts", "select", "section", "authid", "clients", 0)))
    assert all(map(is_secret_key, ("ticket", "secret", "secrte", "tiket", "password", "derived_key")))


# --- endpoints without rules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("192.0.2.1", True)])
def test_an_endpoint_without_access_rules_that_others_reach_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str, warned: bool
) -> None:
    section = (
        f'[endpoints.chassis]\ntransport = "someip"\nauthorities = ["chassis"]\nbind = "{host}"\nport = 30599'
    )
    path = written(tmp_path, f'ticket = "{SECRET}"\n{section}')
    assert main(["check", "--offline", str(path)]) == 0
    output = "".join(capsys.readouterr())
    assert ("no access rules: every entity behind endpoint 'chassis' may publish" in output) is warned
    rule = "\n[[endpoints.chassis.access]]\nallow = true"
    path.write_text(path.read_text(encoding="utf-8") + rule, encoding="utf-8")
    assert main(["check", "--offline", str(path)]) == 0
    assert "no access rules" not in "".join(capsys.readouterr())
