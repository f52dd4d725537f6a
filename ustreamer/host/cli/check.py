# SPDX-License-Identifier: Apache-2.0
"""`ustreamer check`: checks file, routes and environment. It writes nothing and leaves nothing open."""

import errno
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from ustreamer.core.routing.router import SELF
from ustreamer.core.storage.write_access import write_obstacle
from ustreamer.host.admin.server import AddressesRequest, NoAnswerError, send_request
from ustreamer.host.config.config import (
    ConfigError,
    Problem,
    TomlDocument,
    read,
    served_authorities,
)
from ustreamer.host.config.document import KeyPath, format_path, parse_steps
from ustreamer.host.config.observe import ObserveConfig
from ustreamer.host.config.review import review
from ustreamer.host.runtime import process
from ustreamer.host.runtime.plugins import PluginError, holds_subscriptions
from ustreamer.host.runtime.process import Loaded
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.host.storage.state_lock import LOCK
from ustreamer.transport_port import BoundAddress
from ustreamer.uprotocol.ustatus import UStatusError

_OF_PLUGIN: Final = re.compile(r"plugin '([^']+)': (.*)", re.DOTALL)
_OF_KEY: Final = re.compile(r"([a-z_]\w*(?:\.\w+|\[\d+\])*): (.*)", re.DOTALL)
_IN_USE: Final = re.compile(rf"{re.escape(os.strerror(errno.EADDRINUSE))}$|another process listens at ")
_ANSWER_S: Final = 2.0


class CheckReport(msgspec.Struct, frozen=True):
    """The result of a check: the stages passed, the problems of the next one, and the warnings."""

    file: str
    stages: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    authority: str = ""
    serves: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


def check(path: Path, *, offline: bool) -> CheckReport:
    """Check a configuration in up to three stages. A stage with problems is the last one."""
    try:
        document = read(path)
    except ConfigError as error:
        return CheckReport(str(path), problems=error.problems)
    try:
        loaded = process.load_document(document)
    except ConfigError as error:
        return CheckReport(str(path), problems=error.problems)
    except PluginError as error:
        return CheckReport(str(path), problems=(_locate(document, (), str(error)),))
    config = loaded.config
    report = CheckReport(
        file=str(path),
        stages=("file",),
        authority=config.authority,
        serves=served_authorities(config, loaded.kinds),
        endpoints=tuple(config.endpoints),
        plugins=tuple(config.plugins),
    )
    with ExitStack() as closing:
        try:
            streamer = loaded.streamer()
            for transport in streamer.transports.values():
                closing.callback(transport.close)
            streamer.listeners.register()
        except (UStatusError, PluginError, ValueError) as error:
            return msgspec.structs.replace(report, problems=(_locate(document, (), str(error)),))
        warnings = [
            *review(document, config, has_subscriptions=_has_subscriptions(loaded, streamer)),
            *_transport_warnings(document, loaded, streamer),
        ]
        report = msgspec.structs.replace(report, stages=("file", "routes"), warnings=tuple(warnings))
        return report if offline else _with_environment(report, document, loaded, streamer)


def _with_environment(
    report: CheckReport, document: TomlDocument, loaded: Loaded, streamer: Streamer
) -> CheckReport:
    found = list(_environment(loaded, streamer))
    if any(_IN_USE.search(text) for _, text in found):
        running, reason = _running_addresses(loaded.config.state_dir)
        found = [
            (at, f"{text}{reason}" if _IN_USE.search(text) else text)
            for at, text in found
            if not _is_held_by(running, text, streamer)
        ]
    problems = tuple(_locate(document, at, text) for at, text in found)
    stages = report.stages if problems else (*report.stages, "environment")
    return msgspec.structs.replace(report, stages=stages, problems=problems)


def _running_addresses(state_dir: Path) -> tuple[list[BoundAddress], str]:
    """The addresses that the streamer of `state_dir` binds, and the reason if it runs and does not give them.

    Both are empty if it does not run, belongs to another user, or answers with an error.
    """
    try:
        result = send_request(state_dir, AddressesRequest(), _ANSWER_S)
        return msgspec.convert(result, list[BoundAddress]), ""
    except NoAnswerError as error:
        return [], f", perhaps by the streamer of this file: {error.message}"
    except (UStatusError, msgspec.ValidationError):
        return [], ""


def _is_held_by(running: Sequence[BoundAddress], text: str, streamer: Streamer) -> bool:
    """Whether the text reports an address in use that a running streamer binds: a reload keeps it."""
    if _IN_USE.search(text) is None:
        return False
    named = (each for each in streamer.bound_addresses() if _names_address(text, each))
    return any(each.conflicts_with(other) for each in named for other in running)


def _names_address(text: str, address: BoundAddress) -> bool:
    if address.protocol == "unix":
        return text.endswith(f" {address.host}")
    is_udp = re.search(r"\b(?:UDP |udp/|quic/)", text) is not None
    place = re.escape(address.host) + rf"\]?:{address.port}(?!\d)"
    return is_udp == (address.protocol == "udp") and re.search(place, text) is not None


def _has_subscriptions(loaded: Loaded, streamer: Streamer) -> bool:
    """Whether a plugin holds subscriptions, or configured ones suffice: each configured topic has one."""
    if any(map(holds_subscriptions, loaded.plugin_classes.values())):
        return True
    configured = [each for transport in streamer.transports.values() for each in transport.subscriptions()]
    topics = (topic for transport in streamer.transports.values() for topic in transport.topics())
    return bool(configured) and all(any(each.topic.matches(topic) for each in configured) for topic in topics)


def _locate(document: TomlDocument, at: KeyPath, text: str) -> Problem:
    """The problem in a text like "plugin 'payloads': topics[0].class: ...", at its key below `at`."""
    if match := _OF_PLUGIN.fullmatch(text):
        at, text = ("plugins", match[1]), match[2]
    if at and (match := _OF_KEY.fullmatch(text)):
        at, text = (*at, *parse_steps(match[1])), match[2]
    if not at:
        return Problem(str(document.file), 0, "", "", " ".join(text.split()))
    return document.problem(at, text)


def _transport_warnings(document: TomlDocument, loaded: Loaded, streamer: Streamer) -> Iterator[Problem]:
    for name, transport in streamer.transports.items():
        for warning in transport.warnings():
            yield _locate(document, _section_of(loaded, name), warning)


def _environment(loaded: Loaded, streamer: Streamer) -> Iterator[tuple[KeyPath, str]]:
    """The problems of addresses and directories: the place of each, and its text."""
    config = loaded.config
    for name, transport in streamer.transports.items():
        for problem in transport.problems() if name != SELF else ():
            yield _section_of(loaded, name), problem
    yield from _shared_addresses(loaded, streamer)
    if config.observe is not None:
        yield from _observe_problems(config.observe, config.base)
    if obstacle := write_obstacle(config.state_dir) or write_obstacle(config.state_dir / LOCK):
        yield ("state_dir",), f"{config.state_dir} cannot be used: {obstacle}"


def _shared_addresses(loaded: Loaded, streamer: Streamer) -> Iterator[tuple[KeyPath, str]]:
    """The addresses in transport files of endpoints, such as a Zenoh configuration, that something else binds too."""
    config = loaded.config
    bound = [
        ((*_section_of(loaded, name), *parse_steps(each.key)), each)
        for name, section in config.endpoints.items()
        for each in section.bound_addresses()
    ]
    if config.observe is not None:
        bound.append((("observe", "listen"), BoundAddress("listen", "tcp", *config.observe.address)))
    for name, transport in streamer.transports.items():
        own: list[tuple[KeyPath, BoundAddress]] = []
        for address in transport.file_addresses() if name != SELF else ():
            place = (*_section_of(loaded, name), *parse_steps(address.key))
            for other, each in bound:
                if address.conflicts_with(each):
                    yield place, f"{address} is bound by {format_path(other)}"
                    break
            own.append((place, address))
        bound += own


def _observe_problems(config: ObserveConfig, base: Path) -> Iterator[tuple[KeyPath, str]]:
    if obstacle := _listen_obstacle(*config.address):
        yield ("observe", "listen"), obstacle
    if config.token is not None:
        try:
            config.token.read(os.environ, base)
        except ValueError as error:
            yield ("observe", "token"), str(error)


def _section_of(loaded: Loaded, endpoint: str) -> KeyPath:
    """The section of an endpoint: its own, or that of the plugin that provides it."""
    config = loaded.config
    for name, section in config.plugins.items():
        if hasattr(section, "endpoints") and endpoint in section.endpoints(config.authority):
            return "plugins", name
    return "endpoints", endpoint


def _listen_obstacle(host: str, port: int) -> str:
    """The reason why a TCP address cannot be bound; "" if it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port closed just now is free
        try:
            probe.bind((host, port))
        except OSError as error:
            return f"cannot listen on {host}:{port}: {error.strerror}"
    return ""


def render_warnings(report: CheckReport) -> str:
    """The warnings for people, one per line."""
    return "\n".join(
        str(msgspec.structs.replace(each, text=f"warning: {each.text}")) for each in report.warnings
    )


def render(report: CheckReport) -> str:
    """The report for people, without its warnings."""
    if report.problems:
        return str(ConfigError(report.problems))
    return "\n".join(
        (
            f"{report.file}: OK ({', '.join(report.stages)})",
            f"  authority  {report.authority}",
            f"  serves     {', '.join(report.serves)}",
            f"  endpoints  {', '.join(report.endpoints)}",
            f"  plugins    {', '.join(report.plugins) or 'none'}",
        )
    )
