# SPDX-License-Identifier: Apache-2.0
"""`ustreamer check`: checks file, routes and environment. It writes nothing and leaves nothing open."""

import os
from pathlib import Path

import msgspec

from ustreamer.core.routing.router import SELF
from ustreamer.host.config.config import ConfigError, StreamerConfig, served_authorities
from ustreamer.host.runtime import process
from ustreamer.host.runtime.plugins import PluginError
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.uprotocol.ustatus import UStatusError


class CheckReport(msgspec.Struct, frozen=True):
    """The result of a check: the stages passed, and one line per problem."""

    file: str
    stages: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    authority: str = ""
    serves: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


def check(path: Path, *, offline: bool) -> CheckReport:
    """Check a configuration in up to three stages. A stage with problems is the last one."""
    try:
        loaded = process.load(path)
    except ConfigError as error:
        return CheckReport(str(path), problems=tuple(str(problem) for problem in error.problems))
    except PluginError as error:
        return CheckReport(str(path), problems=(str(error),))
    config = loaded.config
    report = CheckReport(
        file=str(path),
        stages=("file",),
        authority=config.authority,
        serves=served_authorities(config, loaded.kinds),
        endpoints=tuple(config.endpoints),
        plugins=tuple(config.plugins),
    )
    try:
        streamer = loaded.streamer()
    except (UStatusError, PluginError, ValueError) as error:
        return msgspec.structs.replace(report, problems=(f"{path}: {error}",))
    report = msgspec.structs.replace(report, stages=("file", "routes"))
    if offline:
        return report
    problems = tuple(f"{path}: {problem}" for problem in _environment(config, streamer))
    stages = report.stages if problems else (*report.stages, "environment")
    return msgspec.structs.replace(report, stages=stages, problems=problems)


def _environment(config: StreamerConfig, streamer: Streamer) -> list[str]:
    problems = [
        f"endpoints.{name}: {problem}"
        for name, transport in streamer.transports.items()
        if name != SELF
        for problem in transport.problems()
    ]
    if not _is_creatable(config.state_dir):
        what = (
            "is not a directory that can be written"
            if config.state_dir.exists()
            else "does not exist and cannot be made"
        )
        problems.append(f"state_dir: {config.state_dir} {what}")
    return problems


def _is_creatable(directory: Path) -> bool:
    """Whether `directory` is a writable directory, or its nearest existing ancestor is one."""
    existing = next((each for each in (directory, *directory.parents) if each.exists()), None)
    return existing is not None and existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def render(report: CheckReport) -> str:
    """The report for people."""
    if report.problems:
        return "\n".join(report.problems)
    return "\n".join(
        (
            f"{report.file}: OK ({', '.join(report.stages)})",
            f"  authority  {report.authority}",
            f"  serves     {', '.join(report.serves)}",
            f"  endpoints  {', '.join(report.endpoints)}",
            f"  plugins    {', '.join(report.plugins) or 'none'}",
        )
    )
