# SPDX-License-Identifier: Apache-2.0
"""`ustreamer subscriptions ls | show | export | import | history | check | rm`: the store of a streamer, running or not.

Only `import` and `rm` write. The store of a running streamer is read as of one moment, without blocking its writer. All changes that
were acknowledged by then are in the result. The store of a stopped streamer is verified during the read. commands.py has the arguments, ACTIONS the function of each action.
"""

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.core.storage.errors import StoreDamaged, StoreTooNew
from ustreamer.core.storage.file_lock import lock_holder
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import ANY
from ustreamer_usubscription.events import SubscriptionEvent
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.service import STORE_DIRECTORY
from ustreamer_usubscription.store import store_contents
from ustreamer_usubscription.store.records import (
    EVENT_PREFIX,
    REMOTE_TOPIC_PREFIX,
    read_event,
    read_remote,
)
from ustreamer_usubscription.store.store_contents import StoreContents

if TYPE_CHECKING:
    from ustreamer_usubscription.operator_changes import SubscriptionText

_DEFAULT_STATE_DIR: Final = "/var/lib/ustreamer"
_READS: Final = 10
"""A streamer on a full disk makes the files of a new store, and removes them again, also while they are read."""
_OK: Final = 0
_DAMAGED: Final = 74
_NS_PER_MS: Final = 1_000_000
_ADDED_AT_ONCE: Final = 100
"""With the longest addresses and details, these fit into a request to a running streamer, 1 MB."""


# --- actions ----------------------------------------------------------------------------------------------------------


def _ls(arguments: argparse.Namespace) -> int:
    found = (listed for listed in _list_subscriptions(arguments) if _matches(arguments, listed.entry))
    if arguments.json:
        print(json.dumps([_subscription_json(*listed) for listed in found], indent=2))
        return _OK
    for entry, status in found:
        print(f"{entry.topic}  {entry.subscriber}  {status.name}  {_rate_text(entry)}  {_expiry_text(entry)}")
    return _OK


def _show(arguments: argparse.Namespace) -> int:
    found = [listed for listed in _list_subscriptions(arguments) if listed.entry.topic == arguments.topic]
    if not found:
        raise UStatusError(UCode.NOT_FOUND, f"{arguments.topic}: it has no subscriber")
    if arguments.json:
        print(json.dumps([_subscription_json(*listed) for listed in found], indent=2))
        return _OK
    print(f"{arguments.topic}  {found[0].status.name}")
    for entry, _ in found:
        print(f"  {entry.subscriber}")
        print(f"    rate     {_rate_text(entry)}")
        print(f"    ends     {_expiry_text(entry)}")
        print(f"    details  {entry.details.hex(' ') or 'none'}")
    return _OK


def _export(arguments: argparse.Namespace) -> int:
    for listed in _list_subscriptions(arguments):
        print(json.dumps(_subscription_json(*listed)))
    return _OK


def _history(arguments: argparse.Namespace) -> int:
    records = _read_contents(_store_path(arguments)).records_with_prefix(EVENT_PREFIX)
    found = [event for event in (read_event(*record) for record in records) if _matches(arguments, event)]
    if arguments.limit is not None:
        del found[: -arguments.limit]
    if arguments.json:
        print(json.dumps([_event_json(event) for event in found], indent=2))
        return _OK
    for event in found:
        columns = (_time_text(event.time_ms), event.topic, event.subscriber, event.status.name, event.reason)
        print("  ".join(map(str, columns)).rstrip())
    return _OK


def _rm(arguments: argparse.Namespace) -> int:
    if arguments.topic is None and arguments.subscriber is None:
        raise invalid_argument(
            "expected --topic, --subscriber or both; every subscription: --topic '//*/FFFFFFFF/FF/FFFF'"
        )
    store = _store_path(arguments)
    if _is_used(store):
        texts = {"topic": arguments.topic, "subscriber": arguments.subscriber}
        request = {name: str(pattern) for name, pattern in texts.items() if pattern is not None}
        removed = arguments.request_plugin(store.parent, "usubscription", {"remove": request})
    else:
        from ustreamer_usubscription.operator_changes import RemovalPattern, change_store

        if not store.exists():
            raise UStatusError(UCode.UNAVAILABLE, f"{store}: there is no store of subscriptions")
        removed = change_store(store, RemovalPattern(arguments.topic or ANY, arguments.subscriber or ANY))
    print(json.dumps({"removed": removed}) if arguments.json else f"{_counted(removed)} removed")
    return _OK


def _counted(number: int) -> str:
    return "1 subscription" if number == 1 else f"{number} subscriptions"


def _import(arguments: argparse.Namespace) -> int:
    from ustreamer_usubscription.operator_changes import AddedSubscriptions, change_store
    from ustreamer_usubscription.subscriptions_file import read_file

    store = _store_path(arguments)
    found = read_file(arguments.file)
    for note in found.notes:
        print(f"{arguments.file}: {note}", file=sys.stderr)
    if _is_used(store):
        imported = _import_into_streamer(arguments, store, found.subscriptions)
    else:
        imported = change_store(
            store, AddedSubscriptions(tuple(each.record() for each in found.subscriptions))
        )
    if ended := len(found.subscriptions) - imported:
        print(f"{arguments.file}: {_counted(ended)} left out, because they have ended", file=sys.stderr)
    counts = {"imported": imported, "ended": ended}
    print(json.dumps(counts) if arguments.json else f"{_counted(imported)} imported")
    return _OK


def _import_into_streamer(
    arguments: argparse.Namespace, store: Path, subscriptions: "Sequence[SubscriptionText]"
) -> int:
    """The number of imported subscriptions. Raises UStatusError, with the number that was imported before."""
    texts, imported = [msgspec.to_builtins(each) for each in subscriptions], 0
    for first in range(0, len(texts), _ADDED_AT_ONCE):
        request = {"add": texts[first : first + _ADDED_AT_ONCE]}
        try:
            imported += arguments.request_plugin(store.parent, "usubscription", request)
        except UStatusError as error:
            text = f"{error.message}; {imported} of {len(texts)} subscriptions were imported before"
            raise UStatusError(error.code, text) from error
    return imported


def _is_used(store: Path) -> bool:
    """Whether a streamer runs that has opened the store."""
    return lock_holder(store.with_name(f"{store.name}.lock")) is not None


def _check(arguments: argparse.Namespace) -> int:
    store = _store_path(arguments)
    pid = lock_holder(store.with_name(f"{store.name}.lock"))
    report: dict[str, object] = {"store": str(store), "used_by": pid, "verified": pid is None}
    try:
        contents_found = _read_contents(store)
        subscriptions = list(contents_found.subscriptions)
        report |= {"layout": contents_found.layout, "subscriptions": len(subscriptions), "problem": None}
    except (StoreDamaged, StoreTooNew) as error:
        report["problem"] = error.message
    report["aside"] = sorted(path.name for path in store.parent.glob(f"{store.name}.*-*"))
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print(_check_text(report))
    return _OK if report["problem"] is None else _DAMAGED


def _check_text(report: Mapping[str, object]) -> str:
    if report["problem"] is not None:
        first = str(report["problem"])
    else:
        how = (
            "every page and record"
            if report["verified"]
            else f"every record, next to process {report['used_by']}"
        )
        first = f"{report['store']}: {report['subscriptions']} subscriptions, layout {report['layout']}; {how}: right"
    quarantined = report["aside"]
    return "\n".join(
        [first, *(f"moved aside: {name}" for name in (quarantined if isinstance(quarantined, list) else []))]
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def _store_path(arguments: argparse.Namespace) -> Path:
    """The directory of the store. INVALID_ARGUMENT for a configuration without it."""
    if arguments.state_dir is not None:
        return Path(arguments.state_dir) / STORE_DIRECTORY
    try:
        state_dir = tomllib.loads(arguments.config.read_text(encoding="utf-8")).get(
            "state_dir", _DEFAULT_STATE_DIR
        )
    except (OSError, ValueError) as error:
        raise invalid_argument(f"{arguments.config}: {error}") from error
    if not isinstance(state_dir, str):
        raise invalid_argument(f"{arguments.config}: state_dir = {state_dir!r}: expected a path")
    # Relative to the file, as for the streamer; an absolute path stays.
    config: Path = arguments.config
    return config.absolute().parent / state_dir / STORE_DIRECTORY


def _is_at(store: Path, directory: int) -> bool:
    """Whether an open directory is still there. While it is open, no new one has its number."""
    try:
        return os.path.samestat(store.stat(), os.fstat(directory))
    except FileNotFoundError:
        return False


def _read_contents(store: Path) -> StoreContents:
    for _ in range(_READS):
        try:
            directory = os.open(store, os.O_PATH)
        except (FileNotFoundError, NotADirectoryError):
            break
        try:
            return store_contents.inspect_store(store)
        except StoreDamaged:
            if _is_at(store, directory):
                raise
        finally:
            os.close(directory)
    raise UStatusError(UCode.UNAVAILABLE, f"{store}: there is no store of subscriptions")


def _matches(arguments: argparse.Namespace, found: SubscriptionRecord | SubscriptionEvent) -> bool:
    topic, subscriber = arguments.topic, arguments.subscriber
    return (topic is None or topic.matches(found.topic)) and (
        subscriber is None or subscriber.matches(found.subscriber)
    )


class ListedSubscription(NamedTuple):
    """A subscription and its status."""

    entry: SubscriptionRecord
    status: Status


def _list_subscriptions(arguments: argparse.Namespace) -> Iterator[ListedSubscription]:
    found = _read_contents(_store_path(arguments))
    remote = dict(read_remote(*record) for record in found.records_with_prefix(REMOTE_TOPIC_PREFIX))
    return (
        ListedSubscription(entry, remote.get(entry.topic, Status.SUBSCRIBED)) for entry in found.subscriptions
    )


# --- output -----------------------------------------------------------------------------------------------------------


def _subscription_json(entry: SubscriptionRecord, status: Status) -> dict[str, object]:
    return {
        "topic": str(entry.topic),
        "subscriber": str(entry.subscriber),
        "status": status.name,
        "period_ns": entry.period_ns,
        "expire_ms": entry.expire_ms,
        "details": entry.details.hex(),
        "version": entry.version,
    }


def _event_json(event: SubscriptionEvent) -> dict[str, object]:
    return {
        "time_ms": event.time_ms,
        "topic": str(event.topic),
        "subscriber": str(event.subscriber),
        "status": event.status.name,
        "why": event.reason,
        "version": event.version,
    }


def _rate_text(entry: SubscriptionRecord) -> str:
    return f"every {entry.period_ns / _NS_PER_MS:g} ms" if entry.period_ns else "every message"


def _expiry_text(entry: SubscriptionRecord) -> str:
    if entry.expire_ms is None:
        return "for ever"
    return f"until {_time_text(entry.expire_ms)}"


def _time_text(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):  # before the first year, or after the year 9999
        return f"{ms} ms"


ACTIONS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "ls": _ls,
    "show": _show,
    "export": _export,
    "import": _import,
    "history": _history,
    "check": _check,
    "rm": _rm,
}
