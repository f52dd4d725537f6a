# SPDX-License-Identifier: Apache-2.0
"""`ustreamer reload | routes | top | tap | dead-letters`: commands for a running streamer, over its admin socket.

`admin_parsers` has their arguments, ACTIONS the function of each.
`dead-letters list` and `show` read the store directly, with or without a running streamer.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ustreamer.core.base.intrusions import Intrusion
from ustreamer.host.admin.server import (
    SOCKET,
    PluginsRequest,
    PurgeRequest,
    RedriveRequest,
    ReloadRequest,
    RoutesRequest,
    StatisticsRequest,
    send_request,
)
from ustreamer.host.cli.format import format_time
from ustreamer.host.cli.tap_command import show_tap
from ustreamer.host.cli.top_command import format_intrusion, is_terminal, run_live
from ustreamer.host.config.config import ConfigError, read
from ustreamer.host.storage import dead_letter_store
from ustreamer.host.storage.dead_letter_store import DIRECTORY, StoredDeadLetter
from ustreamer.host.storage.state_lock import StateLock
from ustreamer.uprotocol.ustatus import UCode, UStatusError

DEFAULT_STATE_DIR: Final = "/var/lib/ustreamer"
_OK: Final = 0
_FAILURE: Final = 1
_SHOWN_BYTES: Final = 256


def running_plugins(config: Path) -> list[str]:
    """The names of the enabled plugins of a running streamer. Raises as `server.ask`."""
    names: list[str] = send_request(state_dir_of(config), PluginsRequest())
    return names


def state_dir_of(config: Path) -> Path:
    """The state_dir of a configuration; all else in the file is ignored. Raises ConfigError."""
    document = read(config)
    named = document.data.get("state_dir", DEFAULT_STATE_DIR)
    if not isinstance(named, str):
        raise ConfigError([document.problem(("state_dir",), "expected a string")])
    return document.base / named


# --- reload, routes, top ---------------------------------------------------------------------------------------------


def _reload(arguments: argparse.Namespace) -> int:
    changed = send_request(state_dir_of(arguments.config), ReloadRequest(str(arguments.config.absolute())))
    if arguments.json:
        return _print_json({"changed": changed})
    print(f"reloaded: {len(changed)} keys changed", *changed, sep="\n  ")
    return _OK


def _routes(arguments: argparse.Namespace) -> int:
    routes = send_request(state_dir_of(arguments.config), RoutesRequest())
    if arguments.json:
        return _print_json(routes)
    for each in routes["endpoints"]:
        link = "up" if each["up"] else "down"
        print(f"{each['name']:<16} {each['transport']:<8} {link:<5} {' '.join(each['authorities'])}")
        if each["peers"]:
            print(f"{'':<16} peers {' '.join(each['peers'])}")
    for each in routes["targets"]:
        print(_format_target(each))
    for each in routes["stopped"]:
        print(f"{each['topic']}  stopped by {each['subscriber']}")
    return _OK


def _format_target(target: Mapping[str, Any]) -> str:
    subscriber = f" for {target['subscriber']}" if target["subscriber"] else ""
    rate = f"  {1e9 / target['period_ns']:g} Hz" if target["period_ns"] else ""
    return f"{target['topic']}  {target['ingress']} -> {target['endpoint']}{subscriber}{rate}"


def _top(arguments: argparse.Namespace) -> int:
    if not (arguments.once or arguments.json) and is_terminal():
        return run_live(state_dir_of(arguments.config), arguments)
    statistics = send_request(state_dir_of(arguments.config), StatisticsRequest())
    if arguments.json:
        return _print_json(statistics)
    print(f"since {format_time(statistics['since_ms'])}")
    print(_format_counters(statistics["ledger"] | {"unaccounted": statistics["unaccounted"]}))
    print(f"dead letters: {_format_counters(statistics['dead_letters'])}")
    if statistics["stopped_topics"]:
        print(f"stopped topics: {statistics['stopped_topics']}, listed by `ustreamer routes`")
    for path, store in statistics["stores"].items():
        state = f"degraded: {store['degraded']}" if store["degraded"] else "ok"
        print(f"store {path}: refused={store['refused']} {state}")
    if statistics["log_suppressed"]:
        print(f"log lines suppressed: {_format_counters(statistics['log_suppressed'])}")
    for intrusion in statistics["intrusions"]:
        print(f"refused: {format_intrusion(msgspec.convert(intrusion, Intrusion))}")
    for queue in statistics["egress_queues"]:
        name, fullest = queue.pop("endpoint"), queue.pop("fullest")
        print(f"{name}: {_format_counters(queue | statistics['endpoints'].get(name, {}))}")
        for each in fullest:
            print(f"  for {each.pop('subscriber')}  {_format_counters(each)}")
    for each in statistics["targets"]:
        counters = {key: each[key] for key in ("received", "delivered", "throttled")}
        print(f"{_format_target(each)}  {_format_counters(counters)}")
    return _OK


def _format_counters(counts: Mapping[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in counts.items())


# --- dead letters -------------------------------------------------------------------------------------------


def _ls(arguments: argparse.Namespace) -> int:
    letters = dead_letter_store.read_letters(state_dir_of(arguments.config) / DIRECTORY)
    if arguments.json:
        return _print_json([_summary(*each) for each in letters])
    for number, letter in letters:
        each = _summary(number, letter)
        addresses = f"{each['source']} -> {each['sink']}" if each["sink"] else each["source"]
        print(
            f"{number}  {each['last_attempt']}  {each['code']}  {each['endpoint']}  {each['type']} {addresses}  "
            f"{each['payload_size']} bytes  {each['attempts']} attempts"
        )
    return _OK


def _summary(number: int, letter: StoredDeadLetter) -> dict[str, Any]:
    """The list entry of a dead letter, without its token and unknown header fields."""
    message = letter.message
    attributes = message.attributes
    return {
        "number": number,
        "id": str(message.id),
        "type": attributes.type.name,
        "source": str(attributes.source),
        "sink": None if attributes.sink is None else str(attributes.sink),
        "code": letter.status.code.name,
        "reason": letter.reason,
        "ingress": letter.ingress,
        "endpoint": letter.endpoint,
        "attempts": letter.attempts,
        "first_attempt": format_time(letter.first_attempt_ms),
        "last_attempt": format_time(letter.last_attempt_ms),
        "payload_size": letter.payload_size,
    }


def _details(number: int, letter: StoredDeadLetter) -> dict[str, Any]:
    attributes = letter.message.attributes
    return _summary(number, letter) | {
        "priority": attributes.priority.name,
        "ttl": attributes.ttl,
        "permission_level": attributes.permission_level,
        "reqid": None if attributes.reqid is None else str(attributes.reqid),
        "traceparent": attributes.traceparent,
        "has_token": attributes.token is not None,
        "payload_format": attributes.payload_format.name,
        "payload": None if letter.payload is None else letter.payload.hex(),
    }


def _show(arguments: argparse.Namespace) -> int:
    stored = dead_letter_store.read_letters(state_dir_of(arguments.config) / DIRECTORY)
    found = [_details(*each) for each in stored if each[0] == arguments.number]
    if not found:
        raise UStatusError(UCode.NOT_FOUND, f"dead letter {arguments.number}: there is none of this number")
    if arguments.json:
        return _print_json(found[0])
    payload = found[0].pop("payload")
    for name, value in found[0].items():
        print(f"{name:<16} {'-' if value is None else value}")
    print(f"{'payload':<16} {_format_payload(payload)}")
    return _OK


def _format_payload(payload: str | None) -> str:
    if payload is None:
        return "was too large to be kept"
    more = " ..." if len(payload) > 2 * _SHOWN_BYTES else ""
    return f"{bytes.fromhex(payload[: 2 * _SHOWN_BYTES]).hex(' ') or 'none'}{more}"


def _numbers_or_all(arguments: argparse.Namespace) -> Sequence[int] | None:
    """The given numbers; None for all. A missing or double choice is a usage error."""
    if bool(arguments.numbers) is arguments.all:
        arguments.usage_error("expected either ID ... or --all")
    return None if arguments.all else tuple(arguments.numbers)


def _redrive(arguments: argparse.Namespace) -> int:
    numbers = _numbers_or_all(arguments)
    request = RedriveRequest(None if numbers is None else tuple(numbers))
    result = send_request(state_dir_of(arguments.config), request)
    failed = numbers is not None and result["left"] > 0
    if arguments.json:
        _print_json(result)
        return _FAILURE if failed else _OK
    print(f"{result['redriven']} redriven, {result['left']} left")
    for each in result["messages"]:
        print(f"  {each['number']}  {each['id']} is now {each['new_id']}")
    for each in result["reasons"]:
        print(f"  {each['number']}  left: {each['reason']}")
    return _FAILURE if failed else _OK


def _purge(arguments: argparse.Namespace) -> int:
    numbers = _numbers_or_all(arguments)
    state_dir = state_dir_of(arguments.config)
    try:
        purged = send_request(state_dir, PurgeRequest(None if numbers is None else tuple(numbers)))
    except UStatusError as error:
        if error.code is not UCode.UNAVAILABLE:
            raise
        purged = _purge_store(state_dir, numbers)
    if arguments.json:
        return _print_json({"purged": purged})
    print(f"{purged} purged")
    return _OK


def _purge_store(state_dir: Path, numbers: Sequence[int] | None) -> int:
    if not (state_dir / DIRECTORY).exists():
        return 0
    with StateLock(state_dir):  # otherwise a streamer that starts now would use the store as well
        return dead_letter_store.purge_letters(state_dir / DIRECTORY, numbers)


def _tap(arguments: argparse.Namespace) -> int:
    return show_tap(arguments.socket or state_dir_of(arguments.config) / SOCKET, arguments)


ACTIONS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "reload": _reload,
    "routes": _routes,
    "top": _top,
    "tap": _tap,
    "dead-letters ls": _ls,
    "dead-letters show": _show,
    "dead-letters redrive": _redrive,
    "dead-letters purge": _purge,
}


# --- formatting ------------------------------------------------------------------------------------------------------


def _print_json(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return _OK
