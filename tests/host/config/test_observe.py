# SPDX-License-Identifier: Apache-2.0
"""The section [observe]."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from ustreamer.host.config import observe
from ustreamer.host.config.config import ConfigError, StreamerConfig, load
from ustreamer.host.config.observe import ObserveConfig, TokenConfig, parse_listen
from ustreamer.transport_port import TransportKind
from ustreamer.transports import BuiltinTransports

HEAD = """\
authority = "hpc"
[endpoints.a]
transport = "local"
network = "a"
authorities = ["car"]
"""
KINDS: Mapping[str, TransportKind] = BuiltinTransports().ustreamer_transports()


@pytest.fixture(autouse=True)
def with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The section does not import the package, so its tests need none."""
    monkeypatch.setattr(observe, "_is_installed", lambda package: True)


def loaded(tmp_path: Path, section: str) -> StreamerConfig:
    path = tmp_path / "ustreamer.toml"
    path.write_text(HEAD + section, encoding="utf-8")
    return load(path, KINDS, {})


def problem(tmp_path: Path, section: str) -> str:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, section)
    (found,) = refused.value.problems
    return str(found)


def test_without_the_section_nothing_is_served(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").observe is None


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("127.8.0.1:65535", ("127.8.0.1", 65_535)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_a_loopback_address_is_accepted(tmp_path: Path, listen: str, address: tuple[str, int]) -> None:
    config = loaded(tmp_path, f'[observe]\nlisten = "{listen}"').observe
    assert config == ObserveConfig(listen)
    assert config.address == address


@pytest.mark.parametrize(
    "listen",
    [
        "",
        "9464",
        ":9464",
        "localhost:9464",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:+1",
        "::1:9464",
        "[127.0.0.1]:9464",
        "[::1]",
        "http://127.0.0.1:9464",
    ],
)
def test_anything_else_is_refused_with_the_form(tmp_path: Path, listen: str) -> None:
    text = problem(tmp_path, f'[observe]\nlisten = "{listen}"')
    assert "ustreamer.toml:7:1: observe.listen: " in text
    assert "an IP address and a port, such as 127.0.0.1:9464" in text


@pytest.mark.parametrize("listen", ["0.0.0.0:9464", "192.168.1.2:9464", "[::]:9464"])
def test_an_address_that_other_machines_reach_needs_a_setting(tmp_path: Path, listen: str) -> None:
    text = problem(tmp_path, f'[observe]\nlisten = "{listen}"')
    assert "ustreamer.toml:7:1: observe.listen: " in text
    assert "without authentication" in text
    assert "allow_remote = true" in text
    allowed = loaded(tmp_path, f'[observe]\nlisten = "{listen}"\nallow_remote = true')
    assert allowed.observe == ObserveConfig(listen, allow_remote=True)


def test_without_the_extra_the_section_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "_is_installed", lambda package: package != "prometheus_client")
    text = problem(tmp_path, '[observe]\nlisten = "127.0.0.1:0"')
    assert "ustreamer.toml:7:1: observe.listen: " in text
    assert "install the wheel file of ustreamer[observe]: docs/install.md" in text
    assert loaded(tmp_path, "").observe is None


def test_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    text = problem(tmp_path, '[observe]\nlisten = "127.0.0.1:0"\ntopp = 3')
    assert "did you mean 'top'?" in text


def test_the_parser_names_the_text() -> None:
    with pytest.raises(ValueError, match="'somewhere' is not an IP address"):
        parse_listen("somewhere")
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"listen": "127.0.0.1:0", "top": 5_001}, ObserveConfig)


TOKEN = "0123456789abcdef"


def test_the_page_needs_a_token_where_other_machines_reach_it(tmp_path: Path) -> None:
    remote = '[observe]\nlisten = "0.0.0.0:9464"\nallow_remote = true\npage = true\n'
    assert "so the page needs a token" in problem(tmp_path, remote)
    assert loaded(tmp_path, remote + 'token = { env = "A_TOKEN" }\n').observe is not None
    assert "add page = true" in problem(
        tmp_path, '[observe]\nlisten = "127.0.0.1:9464"\ntoken = { env = "A_TOKEN" }\n'
    )
    local = '[observe]\nlisten = "127.0.0.1:9464"\npage = true\n'
    for token in ("{}", '{ env = "A", file = "b" }'):
        assert "expected one of env and file" in problem(tmp_path, f"{local}token = {token}\n")


def test_a_token_is_read_from_a_variable_or_a_private_file(tmp_path: Path) -> None:
    assert TokenConfig(env="A_TOKEN").read({"A_TOKEN": f"{TOKEN}\n"}, tmp_path) == TOKEN
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert TokenConfig(file=str(file)).read({}, tmp_path) == TOKEN
    assert TokenConfig(file="token").read({}, tmp_path) == TOKEN
    file.chmod(0o640)
    with pytest.raises(ValueError, match="can be read by other users: chmod 600"):
        TokenConfig(file=str(file)).read({}, tmp_path)
    with pytest.raises(ValueError, match="No such file"):
        TokenConfig(file=str(tmp_path / "none")).read({}, tmp_path)
    with pytest.raises(ValueError, match="is a directory: expected a file") as refused:
        TokenConfig(file=str(tmp_path)).read({}, tmp_path)
    assert "chmod" not in str(refused.value)


@pytest.mark.parametrize("token", ["", "short", "0123456789 abcdef", "0123456789abcdefé"])
def test_an_unfit_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="A_TOKEN has no token: expected 16 or more") as refused:
        TokenConfig(env="A_TOKEN").read({"A_TOKEN": token}, Path())
    assert not token or token not in str(refused.value)
