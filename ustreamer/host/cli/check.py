# SPDX-License-Identifier: Apache-2.0
"""`ustreamer check`: checks file, routes and environment. It writes nothing and leaves nothing open."""

from pathlib import Path

import msgspec

from ustreamer.core.routing.router import SELF
from ustreamer.core.storage.write_access import write_obstacle
from ustreamer.host.config.config import ConfigError, StreamerConfig, served_authorities
from ustreamer.host.runtime import process
from ustreamer.host.runtime.plugins import PluginError
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.host.storage.state_lock import LOCK
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
    if obstacle := write_obstacle(config.state_dir) or write_obstacle(config.state_dir / LOCK):
        problems.append(f"state_dir: {config.state_dir} cannot be used: {obstacle}")
    return problems


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
