# SPDX-License-Identifier: Apache-2.0
"""The command line: `ustreamer run | check | config | explain | why | plugins | demo | attack | import`,
`admin_parsers`, and commands of plugins.

Each function imports what its command needs, and `parser` adds one command if it can: half the time of a start is
the import of modules.
"""

import argparse
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias

from ustreamer import __version__
from ustreamer.host.cli.arguments import MESSAGE_TYPES, uuri_pattern

if TYPE_CHECKING:
    from ustreamer.core.routing.subscriptions import SubscriptionDirectory
    from ustreamer.hooks import OfflineRouting, StoredMessages
    from ustreamer.host.runtime.network_sender import NetworkSender
    from ustreamer.host.runtime.plugins import PluginError
    from ustreamer.uprotocol.ustatus import UStatusError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001
"""The action to which commands are added."""

_MAX_SECONDS: Final = 86_400
_READY_S: Final = 1.0
"""How long the start waits for an output that does not take READY."""


class ExitCode(IntEnum):
    """Exit codes; the numbers above 2 are those of sysexits.h where it has one."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNAVAILABLE = 69
    STORE_DAMAGED = 74
    NOT_DRAINED = 75
    DENIED = 77
    BAD_CONFIG = 78
    INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    if sys.stdout is None:  # closed by the caller: `>&-`
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    words = sys.argv[1:] if argv is None else argv
    try:
        arguments = parser(words[0] if words else "").parse_args(words)
        run: Callable[[argparse.Namespace], int] = arguments.run
        code = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `ustreamer ... | head`
        _discard_output(sys.stdout)
        return ExitCode.FAILURE
    except KeyboardInterrupt:  # while a command starts: a running one has a handler
        return ExitCode.INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and _is_output_refused():
            _discard_output(sys.stdout)
            print(f"cannot write the output: {error.strerror}", file=sys.stderr)
            return ExitCode.FAILURE
        exit_code = _exit_code_of(error)
        if exit_code is None:
            raise
        print(error, file=sys.stderr)
        return exit_code
    return code


def _exit_code_of(error: Exception) -> ExitCode | None:
    """The exit code of an error that is a result of a command; None for a defect."""
    from ustreamer.host.config.config import ConfigError
    from ustreamer.host.runtime.plugins import PluginError
    from ustreamer.uprotocol.ustatus import UStatusError

    if isinstance(error, ConfigError | PluginError):
        return ExitCode.BAD_CONFIG
    return _exit_code_of_status(error) if isinstance(error, UStatusError) else None


def _exit_code_of_status(error: "UStatusError") -> ExitCode:
    from ustreamer.uprotocol.ustatus import UCode

    by_code = {
        UCode.UNAVAILABLE: ExitCode.UNAVAILABLE,
        UCode.DATA_LOSS: ExitCode.STORE_DAMAGED,
        UCode.PERMISSION_DENIED: ExitCode.DENIED,
        UCode.INVALID_ARGUMENT: ExitCode.BAD_CONFIG,
        UCode.UNIMPLEMENTED: ExitCode.BAD_CONFIG,
        UCode.FAILED_PRECONDITION: ExitCode.BAD_CONFIG,  # for example state of a newer version
    }
    return by_code.get(error.code, ExitCode.FAILURE)


class _OneLineHelpFormatter(argparse.HelpFormatter):
    """Wide enough for the longest command: argparse ignores the extra indentation of commands and would wrap them.

    The list of commands has no line of its own with the word COMMAND, so that it fits on a screen.
    """

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        return text.partition("\n")[2] if hasattr(action, "_choices_actions") else text

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        names = [each.dest for each in getattr(action, "_choices_actions", ())]
        self._action_max_length = max([self._action_max_length, *(len(name) + 4 for name in names)])


class _Parser(argparse.ArgumentParser):
    """Its formatters know their width.

    argparse makes a formatter for each argument. Without a width it imports shutil, and that imports three libraries
    for compression.
    """

    def _get_formatter(self) -> argparse.HelpFormatter:
        return self.formatter_class(prog=self.prog, width=_terminal_columns() - 2)  # type: ignore[call-arg]


def _terminal_columns() -> int:
    """As `shutil.get_terminal_size().columns`."""
    with suppress(ValueError, KeyError):
        if (columns := int(os.environ["COLUMNS"])) > 0:
            return columns
    with suppress(AttributeError, ValueError, OSError):  # no stdout, or no terminal
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    return 80


def parser(command: str = "") -> argparse.ArgumentParser:
    """The command line with `command`, if it is one of the streamer's own; otherwise with all commands.

    Only the latter has the commands of plugins.
    """
    top: argparse.ArgumentParser = _Parser(
        prog="ustreamer",
        usage="ustreamer [--help] [--version] COMMAND ...",
        formatter_class=_OneLineHelpFormatter,
        add_help=False,
    )
    # The usage has both options, so that the list of commands fits on a screen.
    top.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    version = f"ustreamer {__version__}"
    top.add_argument("--version", action="version", version=version, help=argparse.SUPPRESS)
    title = "commands of the uProtocol dispatcher of a vehicle gateway"
    commands = top.add_subparsers(prog="ustreamer", title=title, metavar="COMMAND", required=True)
    if command in _COMMANDS:
        _COMMANDS[command](commands)
        return top
    for add in dict.fromkeys(_COMMANDS.values()):
        add(commands)
    _add_plugin_commands(commands)
    return top


def _add_plugin_commands(commands: Commands) -> None:
    """Call `add_commands` in the module `commands` of each plugin's package that has one. No plugin is imported."""
    from importlib import import_module
    from importlib.util import find_spec

    from ustreamer.host.runtime.entry_points import PLUGINS, path_entry_points

    packages = {entry.package for entry in path_entry_points(PLUGINS)}
    for name in sorted(f"{package}.commands" for package in packages if package):
        try:
            if find_spec(name) is not None:
                import_module(name).add_commands(
                    commands, _read_stored_messages, _open_networks, _request_plugin, _load_routing
                )
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything while it is imported
            print(f"warning: {name} adds no command: {error}", file=sys.stderr)


def _read_stored_messages(state_dir: Path) -> "StoredMessages":
    from ustreamer.host.storage.stored_messages import read_stored_messages

    return read_stored_messages(state_dir)


def _open_networks(config: Path) -> "NetworkSender":
    from ustreamer.host.runtime.network_sender import NetworkSender

    return NetworkSender(config)


def _request_plugin(state_dir: Path, plugin: str, request: Mapping[str, Any]) -> Any:
    from ustreamer.host.admin.server import PluginRequest, send_request

    return send_request(state_dir, PluginRequest(plugin, dict(request)))


def _load_routing(config: Path, directory: "SubscriptionDirectory") -> "OfflineRouting":
    from ustreamer.host.cli.offline_routing import load_routing

    return load_routing(config, directory)


def _warn(errors: Iterable["PluginError"]) -> None:
    for error in errors:
        print(f"warning: {error}", file=sys.stderr)


# --- commands and their arguments ------------------------------------------------------------------------------------


def _add_run(commands: Commands) -> None:
    run = commands.add_parser("run", help="run a streamer until SIGTERM or SIGINT")
    run.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file")
    run.add_argument(
        "--drain", type=_seconds, default=5.0, metavar="S", help="seconds to send accepted messages (5)"
    )
    run.add_argument(
        "--log-format",
        choices=("console", "journal", "json"),
        default="console",
        help="format of the log on stderr",
    )
    run.add_argument(
        "--audit",
        type=Path,
        metavar="FILE",
        help="append who subscribed, was denied, reset, redrove, reloaded",
    )
    run.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="the lowest level of the log (info)",
    )
    run.set_defaults(run=_run)


def _add_check(commands: Commands) -> None:
    checking = commands.add_parser("check", help="check a configuration; changes nothing")
    checking.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file")
    checking.add_argument("--offline", action="store_true", help="leave out the environment (ports, files)")
    checking.add_argument("--strict", action="store_true", help="count a warning as an error")
    checking.add_argument("--json", action="store_true", help="print JSON")
    checking.set_defaults(run=_check)


def _add_config(commands: Commands) -> None:
    parser = commands.add_parser("config", help="show the configuration in force, or its JSON Schema")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    showing = actions.add_parser("show", help="every key with its value; changes nothing")
    showing.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file")
    showing.add_argument(
        "--origin", action="store_true", help="with the place of each value: a line, or a default"
    )
    showing.add_argument("--json", action="store_true", help="print JSON")
    showing.set_defaults(run=_config_show)
    schema = actions.add_parser(
        "schema", help="the JSON Schema of the file, with all installed plugins, for editors"
    )
    schema.set_defaults(run=_config_schema)
    control = actions.add_parser(
        "access-control", help="the access control of a Zenoh router, for the identities of an endpoint"
    )
    control.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file")
    control.add_argument("endpoint", metavar="ENDPOINT", help="a Zenoh endpoint of the file")
    control.add_argument(
        "--gateway", required=True, metavar="NAME", help="common name of the streamer's certificate"
    )
    control.set_defaults(run=_config_access_control)


def _add_explain(commands: Commands) -> None:
    parser = commands.add_parser("explain", help="show the route of a message, and the reasons")
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the configuration file")
    parser.add_argument(
        "--source", type=uuri_pattern, required=True, metavar="UURI", help="address of the sender"
    )
    parser.add_argument(
        "--sink", type=uuri_pattern, metavar="UURI", help="address of the receiver; none for a publication"
    )
    parser.add_argument(
        "--type", choices=MESSAGE_TYPES, help="message type (default: derived from source and sink)"
    )
    parser.add_argument("--at", metavar="ENDPOINT", help="ingress endpoint (default: the one of the source)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_explain, usage_error=parser.error)


def _add_why(commands: Commands) -> None:
    parser = commands.add_parser("why", help="explain why messages do not flow, and what to do")
    parser.add_argument(
        "subject", type=uuri_pattern, metavar="UURI", help="a topic, a method, or a subscriber (resource 0)"
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the configuration of the streamer")
    parser.add_argument("--source", type=uuri_pattern, metavar="UURI", help="the caller of a method")
    parser.add_argument(
        "--sample",
        type=_sample_seconds,
        default=0.3,
        metavar="S",
        help="time between two readings of the counters (0.3)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_why, usage_error=parser.error)


def _add_plugins(commands: Commands) -> None:
    listing = commands.add_parser("plugins", help="list installed plugins and the hooks they use")
    listing.add_argument(
        "config", type=Path, metavar="CONFIG", nargs="?", help="only those enabled in a running streamer"
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_plugins)


def _add_demo(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="run a small simulated vehicle with a streamer, and report")
    demo.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="N", help="how long messages flow (10)"
    )
    demo.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 if a rate or a call is wrong; needs a quiet machine",
    )
    demo.add_argument("--json", action="store_true", help="print one JSON object at the end and nothing else")
    demo.add_argument(
        "--recordings", type=Path, metavar="DIR", help="keep the recordings there (`ustreamer recordings`)"
    )
    demo.add_argument(
        "--web",
        type=_port,
        nargs="?",
        const=8080,
        metavar="PORT",
        help="serve a page with live values on this machine (8080; 0: any port); needs the plugin wamp",
    )
    demo.add_argument(
        "--metrics",
        type=_port,
        nargs="?",
        const=9464,
        metavar="PORT",
        help="serve metrics and the page for operators on this machine (9464; 0: any port)",
    )
    demo.set_defaults(run=_demo)


def _add_attack(commands: Commands) -> None:
    parser = commands.add_parser("attack", help="attack a copy of a configuration, on loopback")
    parser.add_argument(
        "config", type=Path, metavar="CONFIG", nargs="?", help="the configuration file; not with --list"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", default=(), help="these attacks")
    parser.add_argument("--list", action="store_true", help="the attacks and their aims; attacks nothing")
    parser.add_argument(
        "--seconds", type=_window_seconds, default=1.0, metavar="S", help="length of each window (1)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_attack, usage_error=parser.error)


def _add_admin(commands: Commands) -> None:
    from ustreamer.host.cli.admin_parsers import add_admin_commands

    add_admin_commands(commands)


def _add_import(commands: Commands) -> None:
    from ustreamer.host.cli.import_command import add_import_command

    add_import_command(commands)


def _add_new(commands: Commands) -> None:
    from ustreamer.host.cli.new_command import add_new_command

    add_new_command(commands)


def _add_completion(commands: Commands) -> None:
    from ustreamer.host.cli.completion import add_completion_command

    add_completion_command(commands)


_COMMANDS: Final[Mapping[str, Callable[[Commands], None]]] = {
    "run": _add_run,
    "check": _add_check,
    "config": _add_config,
    "explain": _add_explain,
    "why": _add_why,
    "plugins": _add_plugins,
    "demo": _add_demo,
    "attack": _add_attack,
    "reload": _add_admin,
    "routes": _add_admin,
    "top": _add_admin,
    "tap": _add_admin,
    "dead-letters": _add_admin,
    "import": _add_import,
    "new": _add_new,
    "completion": _add_completion,
}
"""The streamer's own commands in the order of the help text, and the function that adds each."""


def _seconds(text: str) -> float:
    """A duration on the command line: finite, not negative, at most a day."""
    seconds = float(text)
    if not 0 <= seconds <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0 to {_MAX_SECONDS}")
    return seconds


def _sample_seconds(text: str) -> float:
    """The length of a sample on the command line."""
    seconds = float(text)
    if not 0 <= seconds <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0 to 1")
    return seconds


def _window_seconds(text: str) -> float:
    """The length of a window of `attack` on the command line."""
    seconds = float(text)
    if not 0.1 <= seconds <= 60:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0.1 to 60")
    return seconds


def _port(text: str) -> int:
    """A TCP port on the command line; 0 is any."""
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, 0 to 65535")
    return port


# --- running them ----------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a request to read the configuration, which this does
    from ustreamer.host.runtime import logs, process

    gc.disable()  # until READY: a start makes objects and drops few, and collections were a tenth of its CPU
    try:
        logs.configure_logging(arguments.log_format, arguments.log_level)
        undelivered = process.run(
            process.load(arguments.config), arguments.drain, _print_ready, arguments.audit
        )
        if undelivered.unsent:
            logs.write_text(f"{undelivered.unsent} messages were not sent within {arguments.drain:g} s")
        if undelivered.unconfirmed:
            logs.write_text(f"{undelivered.unconfirmed} messages were sent but may not have arrived")
    finally:
        gc.enable()
        logs.wait_written()
    return ExitCode.NOT_DRAINED if any(undelivered) else ExitCode.OK


def _print_ready() -> None:
    """Write READY to the output. A terminal after Ctrl-S takes it later: meanwhile the streamer runs and stops.

    Not by `print`: at the end of the process, the lock of a stream that waits would end it with SIGABRT.
    """
    errors: list[OSError] = []

    def write() -> None:
        try:
            os.write(sys.stdout.fileno(), b"READY\n")
        except OSError as error:
            errors.append(error)

    writing = threading.Thread(target=write, name="READY", daemon=True)
    writing.start()
    writing.join(_READY_S)
    for error in errors:
        if isinstance(error, BrokenPipeError):
            raise error
        import logging  # a file on a full disk, which must not end the streamer

        extra = {"reason": str(error)}
        logging.getLogger("ustreamer.streamer").warning("streamer.ready_not_printed", extra=extra)
        _discard_output(sys.stdout)


def _is_output_refused() -> bool:
    """Whether the standard output refuses what was printed."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _discard_output(stream: TextIO) -> None:
    """Discard the buffered output. Otherwise the interpreter reports an error at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _check(arguments: argparse.Namespace) -> int:
    gc.disable()  # collections are a tenth of the CPU of a check
    try:
        from ustreamer.host.cli import check

        report = check.check(arguments.config, offline=arguments.offline)
    finally:
        gc.enable()
    failed = bool(report.problems or (arguments.strict and report.warnings))
    if arguments.json:
        _print_json(report)
    else:
        if report.warnings:
            print(check.render_warnings(report), file=sys.stderr)
        if report.problems or not failed:
            print(check.render(report), file=sys.stderr if failed else sys.stdout)
    return ExitCode.BAD_CONFIG if failed else ExitCode.OK


def _config_show(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli.config_command import show_config

    return show_config(arguments.config, origin=arguments.origin, as_json=arguments.json)


def _config_access_control(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli.config_command import print_access_control

    return print_access_control(arguments.config, arguments.endpoint, arguments.gateway)


def _config_schema(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli.config_command import print_schema

    return print_schema()


def _explain(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli.explain_command import run_explain

    return run_explain(arguments)


def _why(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli.why_command import run_why

    return run_why(arguments)


def _plugins(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli.admin_commands import running_plugins
    from ustreamer.host.runtime import plugins

    classes, broken = plugins.load_plugin_classes()
    _warn(broken.values())
    running = None if arguments.config is None else running_plugins(arguments.config)
    found = [
        plugins.describe(entry)
        for name, entry in sorted(plugins.installed_plugins().items())
        if name in classes and (running is None or name in running)
    ]
    if arguments.json:
        _print_json(found)
        return ExitCode.OK
    for plugin in found:
        print(f"{plugin.name:<16} {plugin.distribution} {plugin.version}  {' '.join(plugin.hooks)}")
    if not found:
        print("no plugins installed")
    return ExitCode.OK


def _demo(arguments: argparse.Namespace) -> int:
    from ustreamer.host.demo.requirements import missing_packages

    if missing := missing_packages(web=arguments.web is not None, metrics=arguments.metrics is not None):
        print(f"the demo needs the wheel files of {' '.join(missing)}: docs/install.md", file=sys.stderr)
        return ExitCode.UNAVAILABLE
    from ustreamer.host.demo import command

    return command.run(
        seconds=arguments.seconds,
        strict=arguments.strict,
        as_json=arguments.json,
        recordings=arguments.recordings,
        web=arguments.web,
        metrics=arguments.metrics,
    )


def _attack(arguments: argparse.Namespace) -> int:
    from ustreamer.host.demo.requirements import missing_packages

    if missing := missing_packages(web=False):
        print(f"the attacks need the wheel files of {' '.join(missing)}: docs/install.md", file=sys.stderr)
        return ExitCode.UNAVAILABLE
    from ustreamer.host.attack import command

    if arguments.list:
        return command.print_list()
    if arguments.config is None:
        arguments.usage_error("CONFIG is missing")
    try:
        return command.run(
            arguments.config, only=arguments.only, as_json=arguments.json, seconds=arguments.seconds
        )
    except command.UnknownAttack as error:
        return command.print_error(error)


def _print_json(value: Any) -> None:
    import json

    import msgspec

    print(json.dumps(msgspec.to_builtins(value), indent=2, default=str))
